package servepage

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

const (
	// runsInterval is the pause between two listings of a ledger while somebody looks at them.
	runsInterval = 5 * time.Second
	// maxRuns is how many keys of a ledger are listed.
	maxRuns = 10_000
	// maxRunListings is how many listings are kept.
	maxRunListings = 8
	// maxHistory is how many runs of a key are shown.
	maxHistory = 100
)

// runStates are the states of runs, those that need an operator first.
var runStates = []holdfast.RunState{holdfast.RunFailed, holdfast.RunAbandoned, holdfast.RunStarted,
	holdfast.RunSucceeded}

// stateClasses are the colors of the states.
var stateClasses = map[holdfast.RunState]string{holdfast.RunFailed: "alarm", holdfast.RunAbandoned: "alarm",
	holdfast.RunStarted: "waits", holdfast.RunSucceeded: "held"}

// runsQuery is which listing of a ledger is shared.
type runsQuery struct{ ledger, prefix string }

// listedRun is the last run of a key. Its result is left out, because many large ones would fill the memory.
type listedRun struct {
	holdfast.RunInfo
	resultSize int
	err        error
}

// runListing is what a ledger has listed.
type runListing struct {
	runs   []listedRun // in the order of their keys
	at     time.Time
	err    error
	capped bool
}

func (l runListing) differsFrom(o runListing) bool {
	return (l.err == nil) != (o.err == nil) || !slices.EqualFunc(l.runs, o.runs, func(a, b listedRun) bool {
		return a.Key == b.Key && a.ID == b.ID && a.State == b.State && a.LateReport == b.LateReport
	})
}

// ledgerRuns returns the listing of a ledger that is shared by all who look at it.
func (p *Page) ledgerRuns(q runsQuery) *shared[runListing] {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.runs[q]; s != nil {
		return s
	}
	if len(p.runs) >= maxRunListings { // the one at which nobody has looked for the longest time
		oldest := slices.MinFunc(slices.Collect(maps.Keys(p.runs)), func(a, b runsQuery) int {
			return p.runs[a].idleSince().Compare(p.runs[b].idleSince())
		})
		delete(p.runs, oldest)
	}
	s := newShared(p.base, runsInterval, func(ctx context.Context) runListing { return p.listRuns(ctx, q) },
		runListing.differsFrom)
	p.runs[q] = s
	return s
}

// listRuns reads the last run of each key, at most maxRuns of them, without results.
func (p *Page) listRuns(ctx context.Context, q runsQuery) runListing {
	l := runListing{at: time.Now()}
	for run, err := range p.opts.Client.Ledger(q.ledger, nil).List(ctx, q.prefix) {
		if err != nil && run.Key == "" {
			l.err = err
			break
		}
		if len(l.runs) == maxRuns {
			l.capped = true
			break
		}
		listed := listedRun{run, len(run.Result), err}
		listed.Result = nil
		l.runs = append(l.runs, listed)
	}
	slices.SortFunc(l.runs, func(a, b listedRun) int { return cmp.Compare(a.Key, b.Key) })
	return l
}

// ledgerOf is the ledger that a request names.
func (p *Page) ledgerOf(r *http.Request) string {
	return cmp.Or(r.URL.Query().Get("ledger"), p.opts.Ledgers[0])
}

// showRuns is the page of a ledger.
func (p *Page) showRuns(r *http.Request) (*content, error) {
	v := r.URL.Query()
	ledgers, _ := p.ledgers.get(r.Context()) // what is wrong with the store is said of the list
	known := p.countLedgers(r, ledgers)
	q := runsQuery{ledger: p.ledgerOf(r), prefix: v.Get("prefix")}
	if _, ok := known[q.ledger]; !ok && len(known) > 0 && !v.Has("ledger") {
		q.ledger = slices.Min(slices.Collect(maps.Keys(known))) // the first that the viewer may see
	}
	state := holdfast.RunState(v.Get("state"))
	list, err := p.ledgerRuns(q).get(r.Context())
	if err != nil {
		return nil, err
	}
	now := time.Now()
	counts := map[holdfast.RunState]int{}
	var shown []listedRun
	for _, run := range list.runs {
		if !p.rights(r, q.ledger+"/"+run.Key).See {
			continue
		}
		counts[run.State]++
		if state == "" || run.State == state {
			shown = append(shown, run)
		}
	}
	href := func(state holdfast.RunState, page int) string {
		number := ""
		if page > 1 {
			number = strconv.Itoa(page)
		}
		return buildURL("/runs", "ledger", q.ledger, "prefix", q.prefix, "state", string(state), "page", number)
	}
	pages := max(1, (len(shown)+perPage-1)/perPage)
	page, _ := strconv.Atoi(v.Get("page"))
	page = min(max(1, page), pages)
	live := []markup{p.ledgerTiles(q.ledger, known), runProblems(list), stateTiles(state, counts, href)}
	if len(shown) == 0 {
		live = append(live, paragraph("empty", plain("There are no such runs.")))
	} else {
		live = append(live, p.runTable(r, q.ledger, shown[(page-1)*perPage:min(page*perPage, len(shown))], now),
			pager(page, pages, len(shown), "keys", func(page int) string { return href(state, page) }))
	}
	return &content{title: "Runs", part: "runs", at: now, live: join(live...),
		events: "runs&ledger=" + url.QueryEscape(q.ledger) + "&prefix=" + url.QueryEscape(q.prefix),
		fixed: join(element("h1", nil, plain("Runs")), p.doneNote(r, "/runs", "ledger", q.ledger),
			p.runsForm(q, state, slices.Sorted(maps.Keys(known))))}, nil
}

// runProblems says what is wrong with a listing.
func runProblems(list runListing) markup {
	var notes []markup
	if list.err != nil {
		notes = append(notes, element("p", attrs{"class", "problem", "role", "alert"},
			plain("The ledger could not be listed. "+describeStoreError(list.err).text)))
	}
	if list.capped {
		notes = append(notes, paragraph("note", plain(fmt.Sprintf(
			"The ledger has more than %d keys, and the others are not shown. Give the beginning of a key.", maxRuns))))
	}
	return join(notes...)
}

// stateTiles count the runs by their states.
func stateTiles(chosen holdfast.RunState, counts map[holdfast.RunState]int,
	href func(holdfast.RunState, int) string) markup {
	all := 0
	for _, n := range counts {
		all += n
	}
	tile := func(state holdfast.RunState, n int, words, class string) markup {
		return element("li", nil, element("a", attrs{"href", href(state, 1), "class", class,
			"aria-current", attrIf(state == chosen, "true")}, element("strong", nil, number(n)), plain(" "+words)))
	}
	tiles := []markup{tile("", all, "in all", "tile")}
	for _, s := range runStates {
		class := "tile"
		if counts[s] > 0 && stateClasses[s] == "alarm" {
			class = "tile alarm"
		}
		tiles = append(tiles, tile(s, counts[s], string(s), class))
	}
	return element("ul", attrs{"class", "tiles", "aria-label", "Counts by state"}, tiles...)
}

// runsForm chooses a ledger and keys.
func (p *Page) runsForm(q runsQuery, state holdfast.RunState, ledgers []string) markup {
	var known []markup
	for _, name := range ledgers {
		known = append(known, voidElement("option", attrs{"value", name}))
	}
	return element("form", attrs{"class", "search", "role", "search", "method", "get", "action", "/runs"},
		element("label", attrs{"class", "field"}, plain("Ledger"),
			voidElement("input", attrs{"type", "text", "name", "ledger", "value", q.ledger, "list", "ledgers",
				"required", "",
				"autocomplete", "off"})),
		element("datalist", attrs{"id", "ledgers"}, known...),
		element("label", attrs{"class", "field grow"}, plain("Key begins with"),
			voidElement("input", attrs{"type", "text", "name", "prefix", "value", q.prefix, "autocomplete", "off"})),
		voidElement("input", attrs{"type", "hidden", "name", "state", "value", string(state)}),
		element("button", attrs{"type", "submit", "class", "button"}, plain("Show")))
}

// runTable is the table of the last runs of keys.
func (p *Page) runTable(r *http.Request, ledger string, runs []listedRun, now time.Time) markup {
	columns := []column{{title: "Key"}, {title: "State"}, {title: "Attempt", numbers: true}, {title: "Worker"},
		{title: "Started"}, {title: "Took"}, {title: "Outcome"}}
	acts := false
	var rows []row
	for _, run := range runs {
		key := link(keyURL(ledger, run.Key), nameText(run.Key))
		if run.err != nil {
			rows = append(rows, row{key: rowKey(run.Key),
				cells: []markup{key, badge("alarm", "cannot be read"), "", "", "", "",
					plain(describeStoreError(run.err).text), ""}})
			continue
		}
		action := markup("")
		if p.rights(r, ledger+"/"+run.Key).Break {
			action = runActions(ledger, run.RunInfo)
			acts = acts || action != ""
		}
		rows = append(rows, row{key: rowKey(run.Key), news: text.QuoteName(run.Key) + ": " + string(run.State),
			cells: []markup{
				key, badge(stateClasses[run.State], string(run.State)), number(run.Attempt), foreignText(run.Owner),
				clockTime(run.StartedAt, now), took(run.RunInfo, now), outcome(run.RunInfo, run.resultSize), action}})
	}
	if acts {
		columns = append(columns, column{title: "Actions"})
	}
	for i := range rows {
		rows[i].cells = rows[i].cells[:len(columns)]
	}
	return table("The last run of each key", columns, rows)
}

// runActions are links to the confirmations of what can be done with a key.
func runActions(ledger string, run holdfast.RunInfo) markup {
	action := func(a operator.Action, words string) markup {
		return element("a", attrs{"class", "button small", "data-confirm", "", "href",
			buildURL("/runs/confirm", "ledger", ledger, "key", run.Key, "action", string(a)),
			"aria-label", strings.TrimSuffix(words, "…") + " " + text.QuoteName(run.Key)}, plain(words))
	}
	switch run.State {
	case holdfast.RunFailed, holdfast.RunAbandoned:
		return div("actions", action(operator.Retry, "Retry…"), action(operator.Forget, "Forget…"))
	case holdfast.RunSucceeded:
		return div("actions", action(operator.Forget, "Forget…"))
	}
	return ""
}

func keyURL(ledger, key string) string { return buildURL("/runs/show", "ledger", ledger, "key", key) }

// took is how long a run took, or has taken until now.
func took(run holdfast.RunInfo, now time.Time) markup {
	if run.EndedAt.IsZero() {
		return age(run.StartedAt, now)
	}
	return plain(shown.FormatTook(run, now, " "))
}

// outcome is what has become of a run.
func outcome(run holdfast.RunInfo, resultSize int) markup {
	var parts []markup
	switch {
	case run.State == holdfast.RunSucceeded && resultSize == 0:
		parts = append(parts, plain("no result"))
	case run.State == holdfast.RunSucceeded:
		parts = append(parts, plain(fmt.Sprintf("a result of %d bytes", resultSize)))
	case run.Error != "":
		parts = append(parts, foreignText(text.Shorten(run.Error, 200)))
	}
	if late := shown.DescribeLateReport(run); late != "" {
		parts = append(parts, span("detail", plain(late)))
	}
	return join(parts...)
}

// runsOf returns the runs of the key that a request names.
func (p *Page) runsOf(r *http.Request) (ledger, key string, runs []holdfast.RunInfo, err error) {
	ledger, key = p.ledgerOf(r), r.URL.Query().Get("key")
	if key == "" {
		return ledger, key, nil, newPageError(http.StatusBadRequest, "The key of a run is missing.")
	}
	if !p.rights(r, ledger+"/"+key).See {
		return ledger, key, nil, newPageError(http.StatusForbidden, "You may not see this key.")
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	runs, err = p.opts.Client.Ledger(ledger, nil).LastRuns(ctx, key, maxHistory)
	if err == nil && len(runs) == 0 {
		err = newPageError(http.StatusNotFound, "%s was never run, or its history was removed.", text.QuoteName(key))
	}
	return ledger, key, runs, err
}

// showKey is the page of one key.
func (p *Page) showKey(r *http.Request) (*content, error) {
	note := p.doneNote(r, "/runs/show", "ledger", p.ledgerOf(r), "key", r.URL.Query().Get("key"))
	ledger, key, runs, err := p.runsOf(r)
	if err != nil {
		return nil, err
	}
	now, last := time.Now(), runs[len(runs)-1]
	list := []definition{{"State", badge(stateClasses[last.State], string(last.State))},
		{"Attempt", number(last.Attempt)},
		{"Ledger", nameText(ledger)}}
	if last.Fingerprint != "" {
		list = append(list, definition{"Fingerprint", foreignText(last.Fingerprint)})
	}
	if last.State == holdfast.RunSucceeded && len(last.Result) > 0 {
		list = append(list, definition{"Result", result(last.Result)})
	}
	live := []markup{facts(list...)}
	if p.rights(r, ledger+"/"+key).Break {
		live = append(live, runActions(ledger, last))
	}
	var bars []bar
	var rows []row
	for _, run := range runs {
		class := map[bool]string{true: "broken", false: "held"}[stateClasses[run.State] == "alarm"]
		bars = append(bars, bar{label: fmt.Sprintf("%d %s", run.Attempt, run.Owner),
			title: fmt.Sprintf("attempt %d: %s", run.Attempt,
				run.State), workFrom: run.StartedAt, end: run.EndedAt, class: class})
	}
	for _, run := range slices.Backward(runs) {
		worker := foreignText(run.Owner)
		if run.Meta != "" {
			worker = join(worker, span("detail", foreignText(run.Meta)))
		}
		rows = append(rows, row{key: strconv.FormatInt(run.Attempt, 10),
			news: fmt.Sprintf("attempt %d: %s", run.Attempt, run.State), cells: []markup{
				number(run.Attempt), badge(stateClasses[run.State], string(run.State)), worker, number(run.Token),
				clockTime(run.StartedAt, now), took(run, now), outcome(run, len(run.Result))}})
	}
	live = append(live, element("h2", nil, plain("History")))
	if runs[0].Attempt > 1 {
		live = append(live, paragraph("note",
			plain(fmt.Sprintf("Runs before attempt %d are not shown.", runs[0].Attempt))))
	}
	live = append(live, timeline("The runs of the key; the table below has the same", bars, now),
		table("Runs, the latest first", []column{{title: "Attempt"}, {title: "State"}, {title: "Worker"},
			{title: "Token", numbers: true}, {title: "Started"}, {title: "Took"}, {title: "Outcome"}}, rows))
	return &content{title: text.QuoteName(key), part: "runs", at: now, live: join(live...),
		events: "runs&ledger=" + url.QueryEscape(ledger) + "&prefix=" + url.QueryEscape(key),
		fixed: join(paragraph("path", link(buildURL("/runs", "ledger", ledger), plain("Runs")), plain(" / ")),
			element("h1", nil, nameText(key)), note)}, nil
}

// result is what a run has stored: a short text, or its size.
func result(data []byte) markup {
	if s := string(data); utf8.ValidString(s) && len(s) <= 500 {
		return element("code", nil, foreignText(s))
	}
	return plain(fmt.Sprintf("%d bytes", len(data)))
}

// describeRunAction says what an action on a key will do.
func describeRunAction(action operator.Action, key string, last holdfast.RunInfo) (confirmation, error) {
	happens := []markup{paragraph("", element("strong", nil, nameText(key)), plain(fmt.Sprintf(
		": attempt %d by ", last.Attempt)), foreignText(last.Owner), plain(" is "+string(last.State)+"."))}
	say := func(s string) { happens = append(happens, paragraph("", plain(s))) }
	if action != operator.Retry && action != operator.Forget {
		return confirmation{}, newPageError(http.StatusBadRequest, "There is no such action.")
	}
	if err := operator.CheckRun(action, last); err != nil {
		return confirmation{}, err
	}
	if action == operator.Retry {
		say("One more run may begin at once: whatever the pause between attempts, and even if all attempts are used. Nothing " +
			"is started now: the next worker that asks for the key gets it.")
		return confirmation{title: "Retry the key?", happens: happens, button: "Retry"}, nil
	}
	say("The history of the key is removed, with its result. The next worker that asks for the key runs it as attempt 1.")
	c := confirmation{title: "Forget the key?", button: "Forget"}
	if operator.RepeatsSuccess(action, last) {
		say("The key has succeeded. Without its history its work is done again.")
		c.danger = "I know that the work may be done a second time"
	}
	c.happens = happens
	return c, nil
}

// mayChangeRuns refuses those who may not change the key that a request names.
func (p *Page) mayChangeRuns(r *http.Request) error {
	if !p.opts.AllowBreak {
		return newPageError(http.StatusForbidden,
			"This page is read-only: the server was started without --allow-break.")
	}
	if !p.rights(r, p.ledgerOf(r)+"/"+r.URL.Query().Get("key")).Break {
		return newPageError(http.StatusForbidden, "You may not change this key.")
	}
	return nil
}

// confirmOnRun is the page that says what an action on a key will do.
func (p *Page) confirmOnRun(r *http.Request) (*content, error) {
	if err := p.mayChangeRuns(r); err != nil {
		return nil, err
	}
	ledger, key, runs, err := p.runsOf(r)
	if err != nil {
		return nil, err
	}
	action := operator.Action(r.URL.Query().Get("action"))
	confirm, err := describeRunAction(action, key, runs[len(runs)-1])
	if err != nil {
		return nil, err
	}
	confirm.post = buildURL("/runs/act", "ledger", ledger, "key", key, "action", string(action),
		"attempt", strconv.FormatInt(runs[len(runs)-1].Attempt, 10))
	confirm.cancelTo = keyURL(ledger, key)
	token, cookie := p.formToken(r)
	return &content{title: confirm.title, part: "runs", fixed: confirm.form(token), cookie: cookie}, nil
}

// actOnRun carries out an action that was confirmed, unless there was another run meanwhile.
func (p *Page) actOnRun(r *http.Request) (*content, error) {
	if err := p.checkForm(r); err != nil {
		return nil, err
	}
	if err := p.mayChangeRuns(r); err != nil {
		p.refused(r, operator.Entry{Ledger: p.ledgerOf(r), Key: r.URL.Query().Get("key")})
		return nil, err
	}
	name, key, runs, err := p.runsOf(r)
	if err != nil {
		return nil, err
	}
	action, last := operator.Action(r.URL.Query().Get("action")), runs[len(runs)-1]
	confirm, err := describeRunAction(action, key, last)
	switch {
	case err != nil:
		return nil, err
	case r.URL.Query().Get("attempt") != strconv.FormatInt(last.Attempt, 10):
		return nil, newPageError(http.StatusConflict,
			"The key was run again meanwhile. Look at it first. Nothing was changed.")
	case confirm.danger != "" && r.PostForm.Get("sure") != "yes":
		return nil, newPageError(http.StatusBadRequest,
			"Tick the box before you forget a success. Nothing was changed.")
	}
	finish, err := p.audit(r, operator.Entry{Action: action, Ledger: name, Key: key, Owner: last.Owner, Token: last.Token})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), readTimeout)
	defer cancel()
	err = operator.ActOnRun(ctx, p.opts.Client.Ledger(name, nil), action, key)
	finish(err)
	p.ledgers.invalidate()
	p.mu.Lock()
	for q, s := range p.runs {
		if q.ledger == name {
			s.invalidate()
		}
	}
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if action == operator.Forget { // nothing is left of the key
		return &content{seeAt: p.doneURL(action, "/runs", "ledger", name)}, nil
	}
	return &content{seeAt: p.doneURL(action, "/runs/show", "ledger", name, "key", key)}, nil
}
