package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

// openRun is a run of a client, which the server renews for as long as the client sends beats.
type openRun struct {
	id, ledger string
	caller     string
	run        *holdfast.Run
	ttl        time.Duration
	timer      *time.Timer // ends the run when there was no beat for its TTL

	mu     sync.Mutex
	beatAt time.Time // when the server received the last beat
	ended  bool      // a request or the timer ends it, or has ended it
}

// runTable has the runs that are not ended, by their ids.
type runTable struct {
	mu    sync.Mutex
	byID  map[string]*openRun
	empty chan struct{} // closed when there is none any more; nil until somebody waits for that
}

func (t *runTable) init() { t.byID = map[string]*openRun{} }

var errNoBeat = errors.New("the worker has sent no beat for the TTL")

// add keeps a run until it ends, or until no beat came for its TTL. Nobody can guess its id.
func (t *runTable) add(r *http.Request, ledger string, run *holdfast.Run, ttl time.Duration) *openRun {
	o := &openRun{id: rand.Text(), ledger: ledger, caller: callerOf(r).name, run: run, ttl: ttl, beatAt: time.Now()}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[o.id] = o
	o.timer = time.AfterFunc(ttl, func() { t.expire(o) })
	return o
}

// expire ends a run whose worker is silent, unless a beat has come meanwhile.
func (t *runTable) expire(o *openRun) {
	o.mu.Lock()
	left := time.Until(o.beatAt.Add(o.ttl))
	due := left <= 0 && !o.ended
	if !due {
		if !o.ended {
			o.timer.Reset(left)
		}
		o.mu.Unlock()
		return
	}
	o.ended = true
	o.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	_ = o.run.Fail(ctx, errNoBeat)
	t.remove(o)
}

// all are the runs that are not ended.
func (t *runTable) all() []*openRun {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.byID))
}

// remove forgets a run that has ended. After the last one, a server that closes goes on.
func (t *runTable) remove(o *openRun) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, o.id)
	if len(t.byID) == 0 && t.empty != nil {
		close(t.empty)
		t.empty = nil
	}
}

// find is the run that a request names, if it belongs to the request's caller.
func (t *runTable) find(r *http.Request) (*openRun, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.byID[r.PathValue("run")]
	if o == nil || o.caller != callerOf(r).name {
		return nil, newProblem(codeNotFound, "there is no such run at this server: it has ended, "+
			"there was no beat for its TTL, the server was restarted, or it is another server's")
	}
	return o, nil
}

// waitEmpty waits until there are no runs, or ctx ends.
func (t *runTable) waitEmpty(ctx context.Context) {
	t.mu.Lock()
	if len(t.byID) == 0 {
		t.mu.Unlock()
		return
	}
	if t.empty == nil {
		t.empty = make(chan struct{})
	}
	empty := t.empty
	t.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
}

func (t *runTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID)
}

// beat notes that the worker is alive. It returns false if the run is being ended.
func (o *openRun) beat() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return false
	}
	o.beatAt = time.Now()
	return true
}

// startEnd makes one request the one that ends the run.
func (o *openRun) startEnd() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := !o.ended
	o.ended = true
	return first
}

// undoEnd is called if the run could not be ended because the request was wrong.
func (o *openRun) undoEnd() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = false
	o.timer.Reset(max(0, time.Until(o.beatAt.Add(o.ttl))))
}
