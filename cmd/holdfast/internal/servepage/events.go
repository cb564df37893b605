package servepage

import (
	"fmt"
	"net/http"
	"time"
)

const (
	// maxStreams is how many streams of events are open at one time.
	maxStreams = 1000
	// heartbeat is the pause after which a stream has a line without meaning, so that both ends notice a dead
	// connection.
	heartbeat = 15 * time.Second
	// streamTimeout ends a stream whose reader does not read.
	streamTimeout = 10 * time.Second
	// tickPause is the time between two events for those who may see a part only.
	tickPause = 5 * time.Second
	// minPause is the shortest time between two events of one stream. What happens meanwhile becomes one event.
	minPause = 250 * time.Millisecond
)

// serveEvents sends an event each time when a page may look different. It says only that, so a reader that is slow
// misses nothing: what it has not read yet becomes one event.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request) {
	from, refusal := p.findSource(r)
	if refusal != nil {
		http.Error(w, refusal.text, refusal.status)
		return
	}
	if !p.enterStream() {
		http.Error(w, "Too many pages are open on this server.", http.StatusServiceUnavailable)
		return
	}
	defer p.exitStream()
	changed, unsubscribe := from.subscribe()
	defer unsubscribe()
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no")
	control := http.NewResponseController(w)
	send := func(format string, args ...any) bool {
		_ = control.SetWriteDeadline(time.Now().Add(p.streamTimeout)) // recorders of tests have none
		if _, err := fmt.Fprintf(w, format, args...); err != nil {
			return false
		}
		return control.Flush() == nil
	}
	if !send("retry: 2000\n\n") {
		return
	}
	alive := time.NewTicker(heartbeat)
	defer alive.Stop()
	for n := 1; ; n++ {
		ok := true
		select {
		case <-changed:
			ok = from.allowed() && send("event: change\ndata: %d\n\n", n)
		case <-alive.C:
			ok = send(":\n\n")
		case <-r.Context().Done():
			return
		case <-p.base.Done():
			return
		}
		if !ok {
			return
		}
		select {
		case <-time.After(minPause):
		case <-r.Context().Done():
			return
		case <-p.base.Done():
			return
		}
	}
}

// source tells of the changes of a page.
type source struct {
	subscribe func() (changed <-chan struct{}, unsubscribe func())
	allowed   func() bool // whether the sender of the request may still see them
}

// findSource finds what tells of the changes of the page that a request names. Who may see a part of a page only gets
// events at regular times: an event that came with a change would tell of the rest.
func (p *Page) findSource(r *http.Request) (source, *pageError) {
	q := r.URL.Query()
	sees := func(name string) func() bool { return func() bool { return p.rights(r, name).See } }
	switch of := q.Get("of"); of {
	case "list":
		if all := sees(""); all() {
			return source{p.locks.subscribe, all}, nil
		}
	case "runs":
		ledger, prefix := p.ledgerOf(r), q.Get("prefix")
		if all := sees(ledger + "/" + prefix); all() {
			return source{p.ledgerRuns(runsQuery{ledger, prefix}).subscribe, all}, nil
		}
	case "lock":
		name := q.Get("name")
		if name == "" || !p.rights(r, name).See {
			return source{}, newPageError(http.StatusForbidden, "You may not see this lock.")
		}
		w, err := p.watchLock(name)
		if err != nil {
			return source{}, newPageError(http.StatusServiceUnavailable, "%s", err.Error())
		}
		return source{w.state.subscribe, sees(name)}, nil
	default:
		return source{}, newPageError(http.StatusBadRequest, "There is no such stream of events.")
	}
	return source{p.tick, func() bool { return true }}, nil
}

// tick returns a channel that is notified at regular times.
func (p *Page) tick() (changed <-chan struct{}, stop func()) {
	c, done := make(chan struct{}, 1), make(chan struct{})
	ticker := time.NewTicker(p.tickPause)
	go func() {
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				wake(c)
			case <-done:
				return
			}
		}
	}()
	return c, func() { close(done) }
}

func (p *Page) enterStream() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams >= maxStreams {
		return false
	}
	p.streams++
	return true
}

func (p *Page) exitStream() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams--
}
