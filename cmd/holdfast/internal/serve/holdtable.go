package serve

import (
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

// openHold is a hold of a client, from its request until a while after its end.
type openHold struct {
	id       string
	name     string   // of the lock
	also     []string // the locks that are held with it
	caller   string
	commands chan holdCommand // from other requests, to the goroutine of the stream
	done     chan struct{}    // closed when that goroutine takes no more commands

	mu        sync.Mutex
	leases    *leases   // nil until the lock is granted
	requested bool      // its release was requested
	end       *problem  // why it is not held any more, for later requests; nil while it is
	promised  time.Time // until when the client was told at most that it holds the lock
}

// holdCommand is what another request wants of a hold.
type holdCommand struct {
	detach bool // otherwise release
	reply  chan holdReply
}

type holdReply struct {
	handle lockHandle // of detach
	err    error
}

func (h *openHold) setLeases(l *leases) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leases = l
}

// setEnd says why the hold has ended. Only the first reason counts: the result reports whether it is this one.
func (h *openHold) setEnd(p *problem) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end != nil {
		return false
	}
	h.end = p
	return true
}

// promise notes that the client is told that it holds the lock until then. If it returns a problem, the hold has ended,
// and the client must not be told that.
func (h *openHold) promise(until time.Time) *problem {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end == nil && until.After(h.promised) {
		h.promised = until
	}
	return h.end
}

func (h *openHold) promisedUntil() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.promised
}

func (h *openHold) setRequested() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requested = true
}

// state is what is held, and why it is not held any more.
func (h *openHold) state() (all *leases, requested bool, end *problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leases, h.requested, h.end
}

// maxEndedHolds is for how many holds that have ended the table knows why.
const maxEndedHolds = 10_000

// holdTable has all holds by their ids.
type holdTable struct {
	mu    sync.Mutex
	byID  map[string]*openHold
	ended []string // the ids of those that have ended, a ring
	next  int
}

func (t *holdTable) init() { t.byID = map[string]*openHold{} }

// add makes a hold. Nobody can guess its id.
func (t *holdTable) add(r *http.Request, c *claim) *openHold {
	h := &openHold{id: rand.Text(), name: c.name, also: c.also, caller: callerOf(r).name, commands: make(chan holdCommand),
		done: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[h.id] = h
	return h
}

// finish is called once, when the hold takes no more commands. The table keeps it for a while, so that its client can
// learn what became of it.
func (t *holdTable) finish(h *openHold) {
	h.setEnd(newProblem(codeReleased, "the hold has ended"))
	close(h.done)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.ended) < maxEndedHolds {
		t.ended = append(t.ended, h.id)
		return
	}
	delete(t.byID, t.ended[t.next])
	t.ended[t.next] = h.id
	t.next = (t.next + 1) % maxEndedHolds
}

// find is the hold that a request names, if it belongs to the request's caller.
func (t *holdTable) find(r *http.Request) (*openHold, error) {
	t.mu.Lock()
	h := t.byID[r.PathValue("hold")]
	t.mu.Unlock()
	if h == nil || h.caller != callerOf(r).name {
		return nil, newProblem(codeNotFound, "there is no such hold at this server: it has ended long ago, "+
			"or the server was restarted, or it is another server's")
	}
	return h, nil
}

// holdView is the answer to check.
type holdView struct {
	Hold             string `json:"hold"`
	Lock             string `json:"lock"`
	Token            int64  `json:"token"`
	Remaining        int64  `json:"remaining_ms"`
	ReleaseRequested bool   `json:"release_requested"`
}

// releasedView is the answer to a release.
type releasedView struct {
	Lock  string `json:"lock"`
	Token int64  `json:"token"`
}

// checkHold says whether a hold of another request is valid, and for how long. For that time the server promises
// it.
func (s *Server) checkHold(w http.ResponseWriter, r *http.Request) error {
	if err := readBody(r, nil); err != nil {
		return err
	}
	h, err := s.holds.find(r)
	if err != nil {
		return err
	}
	all, requested, end := h.state()
	switch {
	case end != nil:
		return end
	case all == nil:
		return newProblem(codeNotAcquired, "the hold is still waiting for the lock")
	}
	left := all.Remaining()
	if err := all.Err(); err != nil {
		return err
	}
	if end := h.promise(time.Now().Add(left)); end != nil {
		return end
	}
	return writeJSON(w, holdView{Hold: h.id, Lock: h.name, Token: all.first().Token(), Remaining: shown.Millis(left),
		ReleaseRequested: requested})
}

func (s *Server) releaseHold(w http.ResponseWriter, r *http.Request) error {
	h, _, err := s.commandHold(w, r, false)
	if err != nil {
		return err
	}
	all, _, _ := h.state()
	return writeJSON(w, releasedView{Lock: h.name, Token: all.first().Token()})
}

// detachHold ends a hold without releasing its lock, and returns the handle.
func (s *Server) detachHold(w http.ResponseWriter, r *http.Request) error {
	began := time.Now()
	_, handle, err := s.commandHold(w, r, true)
	if err != nil {
		return err
	}
	return writeJSON(w, viewHandle(handle, began))
}

// commandHold passes a command on to the goroutine of a hold, and waits for its reply.
func (s *Server) commandHold(w http.ResponseWriter, r *http.Request, detach bool) (*openHold, lockHandle, error) {
	if err := readBody(r, nil); err != nil {
		return nil, lockHandle{}, err
	}
	h, err := s.holds.find(r)
	if err != nil {
		return nil, lockHandle{}, err
	}
	c := holdCommand{detach: detach, reply: make(chan holdReply, 1)}
	select {
	case h.commands <- c:
	case <-h.done:
		_, _, end := h.state()
		return nil, lockHandle{}, end
	}
	reply := <-c.reply
	return h, reply.handle, reply.err
}
