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
	// minPause is the shortest time between two events of one stream. What happens meanwhile becomes one event.
	minPause = 250 * time.Millisecond
)

// serveEvents sends an event each time when a page may look different. It says only that, so a reader that is slow
// misses nothing: what it has not read yet becomes one event.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request) {
	subscribe, refusal := p.findSource(r)
	if refusal != nil {
		http.Error(w, refusal.text, refusal.status)
		return
	}
	if !p.enterStream() {
		http.Error(w, "Too many pages are open on this server.", http.StatusServiceUnavailable)
		return
	}
	defer p.exitStream()
	changed, unsubscribe := subscribe()
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
			ok = send("event: change\ndata: %d\n\n", n)
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

// findSource finds what tells of the changes of the page that a request names.
func (p *Page) findSource(r *http.Request) (subscribe func() (<-chan struct{}, func()), refusal *pageError) {
	q := r.URL.Query()
	switch of := q.Get("of"); of {
	case "list":
		return p.locks.subscribe, nil
	case "runs":
		return p.ledgerRuns(runsQuery{p.ledgerOf(r), q.Get("prefix")}).subscribe, nil
	case "lock":
		name := q.Get("name")
		if name == "" || !p.rights(r, name).See {
			return nil, newPageError(http.StatusForbidden, "You may not see this lock.")
		}
		w, err := p.watchLock(name)
		if err != nil {
			return nil, newPageError(http.StatusServiceUnavailable, "%s", err.Error())
		}
		return w.state.subscribe, nil
	default:
		return nil, newPageError(http.StatusBadRequest, "There is no such stream of events.")
	}
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
