package servepage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

// rowKey is a short key of a name, fit for an attribute.
func rowKey(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// lockOf returns the state of the lock that a request names, if its sender may see it.
func (p *Page) lockOf(r *http.Request) (lockState, error) {
	name := r.URL.Query().Get("name")
	if name == "" {
		return lockState{}, newPageError(http.StatusBadRequest, "The name of a lock is missing.")
	}
	if !p.rights(r, name).See {
		return lockState{}, newPageError(http.StatusForbidden, "You may not see this lock.")
	}
	w, err := p.watchLock(name)
	if err != nil {
		return lockState{}, err
	}
	l, err := w.state.get(r.Context())
	if err == nil {
		err = l.err
	}
	return l, err
}

// showLock is the page of one lock.
func (p *Page) showLock(r *http.Request) (*content, error) {
	l, err := p.lockOf(r)
	if err != nil {
		return nil, err
	}
	now, may := time.Now(), p.rights(r, l.Name).Break
	name := text.QuoteName(l.Name)
	info := p.opts.Client.Info()
	kind := shown.DescribeKind(l.Lock)
	if kind == "" {
		kind = "none: it has no claims"
	}
	list := []definition{{"State", lockBadges(l, now)}, {"Kind", plain(kind)}, {"Largest token", tokenCell(l.Token)},
		{"Holders", number(len(l.Holders))}, {"Waiters", plain(describeWaiters(info, l.Lock))}}
	live := []markup{
		element("p", attrs{"class", "for-readers", "data-key", "state", "data-news", describeLock(l)},
			plain(describeLock(l))),
		facts(list...)}
	live = append(live, element("h2", nil, plain("Holders")))
	if len(l.Holders) == 0 {
		live = append(live, paragraph("empty", plain("Nobody holds the lock.")))
	} else {
		live = append(live, claimTable("Holders of "+name, l, l.Holders, "held", may, now))
	}
	live = append(live, element("h2", nil, plain("Waiters, the next one first")))
	if len(l.Waiters) == 0 {
		live = append(live, paragraph("empty", plain(emptyQueue(info, l.Lock))))
	} else {
		live = append(live, claimTable("Waiters for "+name, l, l.Waiters, "waits", may, now))
	}
	live = append(live, p.historySection(l.Name, now))
	return &content{title: name, part: "locks", at: now, events: "lock&name=" + url.QueryEscape(l.Name),
		live: join(live...),
		fixed: join(paragraph("path", link("/", plain("Locks")), plain(" / ")),
			element("h1", nil, nameText(l.Name)), p.doneNote(r, "/locks/show", "name", l.Name))}, nil
}

// describeWaiters is how many claims wait, as far as it is known.
func describeWaiters(info holdfast.Info, l holdfast.Lock) string {
	switch count := shown.CountWaiters(info, l); {
	case count == "-":
		return "not known: plain claims wait in their own processes"
	case !shown.AllWaiters(info, l):
		return fmt.Sprintf("%d, and maybe others in their own processes", len(l.Waiters))
	default:
		return count
	}
}

func emptyQueue(info holdfast.Info, l holdfast.Lock) string {
	if shown.AllWaiters(info, l) {
		return "No claim waits."
	}
	return "No claim waits in the store. Plain claims may wait in their own processes, where they are not seen."
}

// claimTable is a table of holders or of waiters.
func claimTable(caption string, l lockState, claims []holdfast.ClaimInfo, usual string, may bool,
	now time.Time) markup {
	waits := usual == "waits"
	var columns []column
	if waits {
		columns = []column{{title: "Place"}, {title: "Waiter"}, {title: "State"}, {title: "Waits for"}}
	} else {
		columns = []column{{title: "Holder"}, {title: "State"}, {title: "Token", numbers: true}, {title: "Age"},
			{title: "Time left"}, {title: "TTL"}}
	}
	weighed := l.Kind == holdfast.KindRW || l.Kind == holdfast.KindSemaphore
	if weighed {
		columns = append(columns, column{title: map[bool]string{true: "As",
			false: "Permits"}[l.Kind == holdfast.KindRW]})
	}
	columns = append(columns, column{title: "Reference"})
	if may {
		columns = append(columns, column{title: "Actions"})
	}
	var rows []row
	for i, c := range claims {
		var cells []markup
		if waits {
			cells = []markup{number(i + 1), owner(c), claimBadges(l, c, usual, now), age(c.Since, now)}
		} else {
			ttl := plain("unknown")
			if c.TTL > 0 {
				ttl = plain(describeDuration(c.TTL))
			}
			cells = []markup{owner(c), claimBadges(l, c, usual, now), tokenCell(c.Token), age(c.Since, now),
				timeLeft(l.until(c), now), ttl}
		}
		if weighed {
			cells = append(cells, plain(describeWeight(l.Lock, c)))
		}
		cells = append(cells, element("code", nil, foreignText(shown.HiddenRef(c.Ref))))
		if may {
			cells = append(cells, claimActions(l.Name, c, waits, true))
		}
		rows = append(rows, row{key: rowKey(c.Ref), cells: cells})
	}
	return table(caption, columns, rows)
}

// describeWeight is how much of a lock a claim takes.
func describeWeight(l holdfast.Lock, c holdfast.ClaimInfo) string {
	switch {
	case l.Kind != holdfast.KindRW:
		return fmt.Sprintf("%d of %d", c.Weight, l.Limit)
	case c.Weight == l.Limit:
		return "writer"
	}
	return "reader"
}

// historySection is what was observed of a lock, as a drawing and as a table.
func (p *Page) historySection(name string, now time.Time) markup {
	h := p.history.read(name)
	if h.begunAt.IsZero() {
		return join(element("h2", nil, plain("History")),
			paragraph("empty", plain("The lock has not been observed yet.")))
	}
	var bars []bar
	for _, s := range h.spans {
		class := "held"
		if s.claim.Broken {
			class = "broken"
		}
		title := text.Printable(s.claim.Owner)
		if s.claim.Token != 0 {
			title += fmt.Sprintf(", token %d", s.claim.Token)
		}
		bars = append(bars, bar{label: s.claim.Owner, title: title, waitedFrom: s.waitedFrom, workFrom: s.heldFrom,
			end: s.endedAt, class: class, beganBefore: s.beganBefore})
	}
	slices.SortStableFunc(h.events, func(a, b historyEvent) int { return b.at.Compare(a.at) })
	var rows []row
	for i, e := range h.events {
		who, token := markup(""), markup("")
		if e.claim.Ref != "" || e.claim.Owner != "" {
			who, token = owner(e.claim), tokenCell(e.claim.Token)
		}
		what := e.what
		if e.waited >= time.Second {
			what += " after waiting for " + describeDuration(e.waited)
		}
		rows = append(rows, row{key: fmt.Sprintf("event-%d-%d", e.at.UnixNano(), len(h.events)-i),
			cells: []markup{clockTime(e.at, now), who, plain(what), token}})
	}
	section := []markup{element("h2", nil, plain("History")),
		paragraph("note", plain("Observed since "+describeTime(h.begunAt)+
			". Times are in UTC."))}
	if len(bars) > 0 {
		section = append(section, paragraph("legend", span("swatch waited", ""), plain("waits "),
			span("swatch held", ""),
			plain("holds "), span("swatch broken", ""), plain("broken")),
			timeline("Who held the lock, and who waited; the table below has the same", bars, now))
	}
	if len(rows) > 0 {
		section = append(section, table("What was observed, the latest first",
			[]column{{title: "Time"}, {title: "Who"}, {title: "What"}, {title: "Token", numbers: true}}, rows))
	}
	return join(section...)
}

// claimOf finds the claim that a request names, on a lock that its sender may break.
func (p *Page) claimOf(r *http.Request) (l lockState, c *operator.Claim, err error) {
	name, ref := r.URL.Query().Get("name"), r.URL.Query().Get("ref")
	if !p.opts.AllowBreak {
		return l, nil, newPageError(http.StatusForbidden,
			"This page is read-only: the server was started without --allow-break.")
	}
	if !p.rights(r, name).Break {
		return l, nil, newPageError(http.StatusForbidden, "You may not break this lock.")
	}
	if l, err = p.lockOf(r); err != nil {
		return l, nil, err
	}
	if c, err = operator.FindClaim(l.Lock, ref, shown.HiddenRef); ref == "" || err != nil {
		return l, nil, newPageError(http.StatusConflict,
			"This claim does not exist any more: it has ended meanwhile. Nothing was changed.")
	}
	return l, c, nil
}

// confirmOnLock is the page that says what an action on a claim will do.
func (p *Page) confirmOnLock(r *http.Request) (*content, error) {
	l, c, err := p.claimOf(r)
	if err != nil {
		return nil, err
	}
	action := operator.Action(r.URL.Query().Get("action"))
	confirm, err := describeAction(action, c)
	if err != nil {
		return nil, err
	}
	confirm.post = buildURL("/locks/act", "name", l.Name, "ref", shown.HiddenRef(c.Ref), "action", string(action),
		"when", describeTurn(c))
	confirm.cancelTo = lockURL(l.Name)
	token, cookie := p.formToken(r)
	return &content{title: confirm.title, part: "locks", fixed: confirm.form(token), cookie: cookie}, nil
}

// describeTurn is whether a claim waits, in the URL of a form. A waiter may hold the lock when the form is sent.
func describeTurn(c *operator.Claim) string {
	if c.Waits {
		return "waiting"
	}
	return "holding"
}

// describeAction says what an action on a claim will do.
func describeAction(action operator.Action, c *operator.Claim) (confirmation, error) {
	var who []markup
	renewal := "at its next renewal"
	if c.TTL > 0 {
		renewal += ", after at most " + describeDuration(c.TTL/3)
	}
	state := " holds "
	if c.Waits {
		state = " waits for "
	}
	who = append(who, element("strong", nil, foreignText(c.Owner)), plain(state),
		element("strong", nil, nameText(c.Lock.Name)))
	if c.Token != 0 {
		who = append(who, plain(fmt.Sprintf(" under token %d", c.Token)))
	}
	if c.Meta != "" {
		who = append(who, plain(". Its note: "), foreignText(c.Meta))
	}
	happens := []markup{paragraph("", append(who, ".")...)}
	say := func(s string) { happens = append(happens, paragraph("", plain(s))) }
	switch {
	case action == operator.RequestRelease && c.Foreign:
		return confirmation{}, newPageError(http.StatusUnprocessableEntity,
			"The holder is another kind of client, which cannot be asked.")
	case action == operator.RequestRelease:
		if c.Waits {
			renewal = "once it holds the lock"
		}
		say("The holder is asked to release the lock. It learns of the request " + renewal +
			", and it decides. Nothing is " +
			"taken away.")
		return confirmation{title: "Ask to release?", happens: happens, button: "Ask to release"}, nil
	case action == operator.Break && c.Waits:
		say("Its wait ends with an error, and it loses its place in the queue. The holder is not touched.")
		return confirmation{title: "Remove from the queue?", happens: happens, button: "Remove from the queue",
			reason: true}, nil
	case action == operator.Break && c.Foreign:
		return confirmation{}, newPageError(http.StatusUnprocessableEntity,
			"The holder is another kind of client, which cannot be told. Its claim can be broken by force only.")
	case action == operator.Break:
		left := "when its TTL has passed"
		if c.Remaining > 0 {
			left += ", in " + describeDuration(c.Remaining)
		}
		say("The holder loses the lock. It learns that " + renewal +
			", stops its work and releases the lock. If it does not " +
			"renew, the lock passes on " + left + ".")
		say("Two holders never work at the same time.")
		return confirmation{title: "Break the lock?", happens: happens, button: "Break", reason: true}, nil
	case action == operator.BreakForce:
		next := "The lock is free at once."
		if n := len(c.Lock.Waiters); n > 0 && !c.Waits {
			next = fmt.Sprintf("The lock is free at once, and passes on to the next of %d waiters.", n)
		}
		say(next + " The old holder learns that " + renewal + ", and may work until then.")
		say("So two may work at the same time. Only resources that check tokens refuse what the old holder writes.")
		return confirmation{title: "Break by force?", happens: happens, button: "Break by force", reason: true,
			danger: "I know that two holders may work at the same time"}, nil
	}
	return confirmation{}, newPageError(http.StatusBadRequest, "There is no such action.")
}

// actOnLock carries out an action that was confirmed.
func (p *Page) actOnLock(r *http.Request) (*content, error) {
	if err := p.checkForm(r); err != nil {
		return nil, err
	}
	if name := r.URL.Query().Get("name"); !p.rights(r, name).Break {
		p.refused(r, operator.Entry{Lock: name})
	} else if w, err := p.watchLock(name); err == nil {
		w.state.invalidate() // what counts is the lock as it is now
	}
	l, c, err := p.claimOf(r)
	if err != nil {
		return nil, err
	}
	action, reason := operator.Action(r.URL.Query().Get("action")), r.PostForm.Get("reason")
	confirm, err := describeAction(action, c)
	switch {
	case err != nil:
		return nil, err
	case r.URL.Query().Get("when") != describeTurn(c):
		return nil, newPageError(http.StatusConflict,
			"The claim was waiting when you opened the confirmation, and holds the lock now. Nothing was changed.")
	case confirm.danger != "" && r.PostForm.Get("sure") != "yes":
		return nil, newPageError(http.StatusBadRequest,
			"Tick the box before you break a lock by force. Nothing was changed.")
	case text.OneLine(reason) != reason:
		return nil, newPageError(http.StatusBadRequest,
			"A reason must be one line of printable text. Nothing was changed.")
	case len(reason) > operator.MaxReason:
		return nil, newPageError(http.StatusBadRequest, "A reason may have %d bytes. Nothing was changed.", operator.MaxReason)
	}
	finish, err := p.audit(r, operator.Entry{Action: action, Lock: l.Name, Ref: shown.HiddenRef(c.Ref), Owner: c.Owner,
		Token: c.Token, Reason: reason})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), readTimeout)
	defer cancel()
	err = c.Act(ctx, p.opts.Client, action,
		operator.DescribeBreak("an operator, on the page of holdfast serve", action, reason))
	finish(err)
	p.locks.invalidate()
	if w, err := p.watchLock(l.Name); err == nil {
		w.state.invalidate()
	}
	if err != nil {
		return nil, err
	}
	return &content{seeAt: p.doneURL(action, "/locks/show", "name", l.Name)}, nil
}

// refused reports an action that its sender may not carry out.
func (p *Page) refused(r *http.Request, e operator.Entry) {
	e.Action = operator.Action(r.URL.Query().Get("action"))
	if _, known := doneTexts[e.Action]; known && p.opts.Refused != nil {
		p.opts.Refused(r, e)
	}
}

// audit writes an action down before it is carried out. finish writes its outcome.
func (p *Page) audit(r *http.Request, e operator.Entry) (finish func(error), err error) {
	if p.opts.Audit == nil {
		return func(error) {}, nil
	}
	finish, err = p.opts.Audit(r, e)
	if err != nil {
		return nil, newPageError(http.StatusServiceUnavailable,
			"The audit log cannot be written, so nothing was changed: %s", text.OneLine(err.Error()))
	}
	return finish, nil
}
