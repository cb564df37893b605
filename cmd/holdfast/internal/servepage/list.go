package servepage

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

// perPage is how many locks or runs are on one page.
const perPage = 100

// listQuery is which locks are shown, and how.
type listQuery struct {
	search string // in the name, the holders and their notes
	prefix string // of the name
	only   string // "", "waiting" or "attention"
	sort   string
	page   int // from 1
}

// listQueryOf reads what the list shows. What the page does not know falls back to the default: an old link still
// works.
func listQueryOf(r *http.Request) listQuery {
	v := r.URL.Query()
	q := listQuery{search: strings.TrimSpace(v.Get("q")), prefix: v.Get("prefix"), only: v.Get("only"),
		sort: v.Get("sort")}
	q.page, _ = strconv.Atoi(v.Get("page"))
	q.page = max(1, q.page)
	if _, ok := lockOrders[q.sort]; !ok {
		q.sort = "name"
	}
	return q
}

// url is the list with another order or page.
func (q listQuery) url(order string, page int) string {
	number := ""
	if page > 1 {
		number = strconv.Itoa(page)
	}
	if order == "name" {
		order = ""
	}
	return buildURL("/", "q", q.search, "prefix", q.prefix, "only", q.only, "sort", order, "page", number)
}

// lockOrders are the orders of the list. Locks that are equal in one are in the order of their names.
var lockOrders = map[string]func(a, b lockState) int{
	"name":   func(a, b lockState) int { return 0 },
	"holder": func(a, b lockState) int { return cmp.Compare(firstHolder(a).Owner, firstHolder(b).Owner) },
	"age": func(a, b lockState) int { // the oldest first, those without a holder last
		return compareTimes(firstHolder(a).Since, firstHolder(b).Since)
	},
	"left": func(a, b lockState) int {
		return compareTimes(a.until(firstHolder(a)), b.until(firstHolder(b)))
	},
	"waiting": func(a, b lockState) int { return cmp.Compare(len(b.Waiters), len(a.Waiters)) },
}

// compareTimes puts an unknown time behind the others.
func compareTimes(a, b time.Time) int {
	switch {
	case a.IsZero() != b.IsZero():
		return map[bool]int{true: 1, false: -1}[a.IsZero()]
	}
	return a.Compare(b)
}

func firstHolder(l lockState) (first holdfast.ClaimInfo) {
	if len(l.Holders) > 0 {
		first = l.Holders[0]
	}
	return first
}

// matches reports whether a lock is shown.
func (q listQuery) matches(l lockState, now time.Time) bool {
	switch {
	case !strings.HasPrefix(l.Name, q.prefix),
		q.only == "waiting" && len(l.Waiters) == 0,
		q.only == "attention" && !needsAttention(l, now):
		return false
	case q.search == "":
		return true
	}
	search := strings.ToLower(q.search)
	found := func(s string) bool { return strings.Contains(strings.ToLower(s), search) }
	return found(l.Name) || slices.ContainsFunc(slices.Concat(l.Holders, l.Waiters), func(c holdfast.ClaimInfo) bool {
		return found(c.Owner) || found(c.Meta)
	})
}

// needsAttention reports whether an operator should look at a lock.
func needsAttention(l lockState, now time.Time) bool {
	return l.err != nil || slices.ContainsFunc(l.Holders, func(c holdfast.ClaimInfo) bool {
		return c.Broken || c.Foreign || l.isExpired(c, now)
	})
}

// showList is the page of all locks.
func (p *Page) showList(r *http.Request) (*content, error) {
	list, err := p.locks.get(r.Context())
	if err != nil {
		return nil, err
	}
	q, now := listQueryOf(r), time.Now()
	var visible, shown []lockState
	for _, l := range list.locks {
		if !p.rights(r, l.Name).See {
			continue
		}
		visible = append(visible, l)
		if q.matches(l, now) {
			shown = append(shown, l)
		}
	}
	order := lockOrders[q.sort]
	slices.SortStableFunc(shown, func(a, b lockState) int { return order(a, b) })
	pages := max(1, (len(shown)+perPage-1)/perPage)
	q.page = min(q.page, pages)
	part := shown[(q.page-1)*perPage : min(q.page*perPage, len(shown))]
	live := []markup{p.listProblems(list), summary(visible, now, p.failedRunsTile(r))}
	if len(part) == 0 {
		words := "No lock is held or waited for."
		if len(visible) > 0 {
			words = "No lock matches. Change the search above, or show all locks."
		}
		live = append(live, paragraph("empty", plain(words)))
	} else {
		live = append(live, p.lockTable(r, part, q, now), pager(q.page, pages, len(shown), "locks",
			func(page int) string { return q.url(q.sort, page) }))
	}
	return &content{title: "Locks", part: "locks", events: "list", at: now,
		fixed: join(element("h1", nil, plain("Locks")), q.form()), live: join(live...)}, nil
}

// form searches. It works without the script, which sends it while its user types.
func (q listQuery) form() markup {
	option := func(value, title string) markup {
		return element("option", attrs{"value", value, "selected", attrIf(q.only == value, "")}, plain(title))
	}
	return element("form", attrs{"class", "search", "role", "search", "method", "get", "action", "/"},
		element("label", attrs{"class", "field grow"}, plain("Search names, holders and notes"),
			voidElement("input", attrs{"type", "search", "name", "q", "value", q.search, "autocomplete", "off"})),
		element("label", attrs{"class", "field"}, plain("Name begins with"),
			voidElement("input", attrs{"type", "text", "name", "prefix", "value", q.prefix, "autocomplete", "off"})),
		element("label", attrs{"class", "field"}, plain("Show"), element("select", attrs{"name", "only"},
			option("", "all locks"), option("waiting", "locks with waiters"), option("attention",
				"what needs attention"))),
		voidElement("input", attrs{"type", "hidden", "name", "sort", "value", q.sort}),
		element("button", attrs{"type", "submit", "class", "button"}, plain("Search")))
}

// listProblems says what is wrong with a listing.
func (p *Page) listProblems(list listing) markup {
	var notes []markup
	if list.err != nil {
		notes = append(notes, element("p", attrs{"class", "problem", "role", "alert"},
			plain("The store could not be listed. What is shown is from "+describeTime(list.at)+". "),
			plain(describeStoreError(list.err).text)))
	}
	if list.capped {
		notes = append(notes, paragraph("note", plain(fmt.Sprintf(
			"The store has more than %d locks, and the others are not shown. Use holdfast list PREFIX.", maxListed))))
	}
	return join(notes...)
}

// summary counts the locks. runs is a tile of the runs.
func summary(locks []lockState, now time.Time, runs markup) markup {
	held, waited, attention := 0, 0, 0
	for _, l := range locks {
		if len(l.Holders) > 0 {
			held++
		}
		if len(l.Waiters) > 0 {
			waited++
		}
		if needsAttention(l, now) {
			attention++
		}
	}
	tile := func(n int, href, words, class string) markup {
		return element("li", nil, element("a", attrs{"href", href, "class", class},
			element("strong", nil, number(n)), plain(" "+words)))
	}
	class := "tile"
	if attention > 0 {
		class = "tile alarm"
	}
	return element("ul", attrs{"class", "tiles", "aria-label", "Counts"},
		tile(held, "/", "held", "tile"), tile(waited, "/?only=waiting", "with waiters", "tile"),
		tile(attention, "/?only=attention",
			map[bool]string{true: "needs attention", false: "need attention"}[attention == 1],
			class), runs)
}

// lockTable is the table of locks.
func (p *Page) lockTable(r *http.Request, locks []lockState, q listQuery, now time.Time) markup {
	sorted := func(title, order, direction string) column {
		c := column{title: title, href: q.url(order, 1)}
		if q.sort == order {
			c.sorted = direction
		}
		return c
	}
	columns := []column{sorted("Lock", "name", "ascending"), {title: "State"}, sorted("Held by", "holder", "ascending"),
		{title: "Token", numbers: true}, sorted("Age", "age", "descending"), sorted("Time left", "left", "ascending"),
		sorted("Waiting", "waiting", "descending")}
	acts := false
	var rows []row
	for _, l := range locks {
		cells := []markup{
			join(link(lockURL(l.Name), nameText(l.Name)), span("detail", plain(shown.DescribeKind(l.Lock)))),
			lockBadges(l, now)}
		if l.err != nil {
			cells = append(cells, span("detail", plain(describeStoreError(l.err).text)), "", "", "", "")
		} else {
			cells = append(cells, p.holderCells(l, now)...)
			cells = append(cells, p.waiterCell(l))
		}
		action := p.rowActions(r, l)
		acts = acts || action != ""
		rows = append(rows, row{key: rowKey(l.Name), cells: append(cells, action), news: describeLock(l)})
	}
	if acts {
		columns = append(columns, column{title: "Actions"})
	}
	for i := range rows {
		rows[i].cells = rows[i].cells[:len(columns)]
	}
	return table("Locks", columns, rows)
}

// holderCells are the cells of the first holder.
func (p *Page) holderCells(l lockState, now time.Time) []markup {
	if len(l.Holders) == 0 {
		return []markup{span("detail", plain("nobody")), "", "", ""}
	}
	h := l.Holders[0]
	holder := owner(h)
	if more := len(l.Holders) - 1; more > 0 {
		holder = join(holder, span("detail", plain(fmt.Sprintf("and %d more", more))))
	}
	return []markup{holder, tokenCell(h.Token), age(h.Since, now), timeLeft(l.until(h), now)}
}

// owner is who made a claim, with the note.
func owner(c holdfast.ClaimInfo) markup {
	who := foreignText(c.Owner)
	if c.Owner == "" {
		who = plain("unknown")
	}
	if c.Meta == "" {
		return who
	}
	return join(who, span("detail", foreignText(c.Meta)))
}

func tokenCell(token int64) markup {
	if token == 0 {
		return span("detail", plain("none"))
	}
	return number(token)
}

// waiterCell is how many claims wait, and the first of them in their order.
func (p *Page) waiterCell(l lockState) markup {
	const named = 3
	count := shown.CountWaiters(p.opts.Client.Info(), l.Lock)
	if count == "-" {
		return span("soft", plain("not known"))
	}
	cell := plain(count)
	if len(l.Waiters) == 0 {
		return cell
	}
	var who []markup
	for i, c := range l.Waiters {
		if i == named {
			who = append(who, element("li", attrs{"class", "more"},
				plain(fmt.Sprintf("and %d more", len(l.Waiters)-named))))
			break
		}
		who = append(who, element("li", nil, foreignText(c.Owner)))
	}
	return join(cell, element("ol", attrs{"class", "waiters"}, who...))
}

// rowActions are the actions on the only holder of a lock.
func (p *Page) rowActions(r *http.Request, l lockState) markup {
	if l.err != nil || len(l.Holders) != 1 || !p.rights(r, l.Name).Break {
		return ""
	}
	return claimActions(l.Name, l.Holders[0], false, false)
}

// claimActions are links to the confirmations of what can be done with a claim. A break by force of a holder that can
// be told is left out unless all are asked for.
func claimActions(name string, c holdfast.ClaimInfo, waits, all bool) markup {
	action := func(a operator.Action, words, what string) markup {
		return element("a", attrs{"class", "button small", "data-confirm", "", "href",
			buildURL("/locks/confirm", "name", name, "ref", shown.HiddenRef(c.Ref), "action", string(a)), "aria-label",
			what + " " + text.QuoteName(name) + ": " + text.Printable(c.Owner)}, plain(words))
	}
	switch {
	case waits:
		return action(operator.Break, "Remove…", "Remove from the queue of")
	case c.Foreign, c.Broken:
		return action(operator.BreakForce, "Force…", "Force a break of")
	}
	actions := []markup{action(operator.RequestRelease, "Ask…", "Ask to release"), action(operator.Break, "Break…", "Break")}
	if all {
		actions = append(actions, action(operator.BreakForce, "Force…", "Force a break of"))
	}
	return div("actions", actions...)
}

// lockBadges is the state of a lock in words.
func lockBadges(l lockState, now time.Time) markup {
	switch {
	case l.err != nil:
		return badge("alarm", "cannot be read")
	case len(l.Holders) > 0:
		return claimBadges(l, l.Holders[0], "held", now)
	case len(l.Waiters) > 0:
		return badge("waits", "waited for")
	}
	return badge("quiet", "free")
}

// claimBadges is the state of a claim in words.
func claimBadges(l lockState, c holdfast.ClaimInfo, usual string, now time.Time) markup {
	var list []markup
	switch {
	case c.Broken:
		list = append(list, badge("alarm", "broken"))
	case l.isExpired(c, now):
		list = append(list, badge("alarm", "expired"))
	case usual == "held":
		list = append(list, badge("held", "held"))
	default:
		list = append(list, badge("waits", usual))
	}
	if c.Foreign {
		list = append(list, badge("notice", "foreign"))
	}
	if c.Detached {
		list = append(list, badge("notice", "detached"))
	}
	if c.ReleaseRequested && !c.Broken {
		list = append(list, badge("notice", "asked to release"))
	}
	return join(list...)
}

// describeLock is the state of a lock in one sentence, for screen readers.
func describeLock(l lockState) string {
	name := text.QuoteName(l.Name)
	switch n := len(l.Holders); {
	case l.err != nil:
		return name + " cannot be read"
	case n == 0 && len(l.Waiters) == 0:
		return name + " is free"
	case n == 0:
		return name + " is waited for"
	default:
		s := name + " is held by " + text.Printable(l.Holders[0].Owner)
		if n > 1 {
			s += fmt.Sprintf(" and %d more", n-1)
		}
		if l.Holders[0].Broken {
			s += ", and broken"
		}
		return s
	}
}

func lockURL(name string) string { return buildURL("/locks/show", "name", name) }

// pager says which part is shown, and leads to the others.
func pager(page, pages, all int, what string, href func(page int) string) markup {
	first, last := (page-1)*perPage+1, min(page*perPage, all)
	if pages == 1 {
		if all == 1 {
			what = strings.TrimSuffix(what, "s")
		}
		return paragraph("pager", plain(fmt.Sprintf("%d %s", all, what)))
	}
	parts := []markup{span("", plain(fmt.Sprintf("%d to %d of %d %s", first, last, all, what)))}
	if page > 1 {
		parts = append(parts, element("a", attrs{"href", href(page - 1), "rel", "prev"}, plain("Previous")))
	}
	if page < pages {
		parts = append(parts, element("a", attrs{"href", href(page + 1), "rel", "next"}, plain("Next")))
	}
	return element("nav", attrs{"class", "pager", "aria-label", "Pages"}, parts...)
}
