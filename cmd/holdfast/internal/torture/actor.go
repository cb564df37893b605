package torture

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast"
)

// actor is what a worker does with one lock: it asks for it, holds it for a while, and releases it, again and again.
type actor struct {
	worker  *worker
	index   int
	lock    Lock
	rnd     *rand.Rand
	replies chan order
	key     int64 // of a ledger: the key that it tries
	served  bool  // since the command has asked for calm
}

// holding is what an actor holds.
type holding interface {
	Valid() bool
	Token() int64
}

// grant is a lock that was granted.
type grant struct {
	holding
	weight  int64
	told    func() bool // of a lock that is not valid any more: whether its holder was told that it is lost
	release func() (how string, err error)
}

// markInterval is how often a holder asks whether it still holds the lock.
const markInterval = 2 * time.Millisecond

func (a *actor) run(ctx context.Context) {
	for ctx.Err() == nil {
		if !sleep(ctx, a.pause()) {
			return
		}
		a.takeTurn(ctx)
	}
}

// pause is how long the actor waits until it asks again.
func (a *actor) pause() time.Duration {
	if a.worker.calm.Load() && !a.served {
		return time.Duration(a.rnd.Int64N(int64(20 * time.Millisecond)))
	}
	return time.Duration(a.rnd.ExpFloat64() * float64(a.worker.task.Pause))
}

// sleep waits, and reports whether ctx still lasts.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// takeTurn asks for the lock once.
func (a *actor) takeTurn(ctx context.Context) {
	w := a.worker
	id := w.nextID.Add(1)
	calm := w.calm.Load()
	limit := 3 * w.task.TTL
	if calm { // a wait that nobody ends is seen as such
		limit = time.Hour
	}
	try := !calm && a.rnd.IntN(8) == 0
	if !calm && a.rnd.IntN(4) == 0 { // a wait that is given up
		limit = time.Duration(a.rnd.Int64N(int64(w.task.TTL)))
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	key := a.key
	w.tell(report{Op: opCall, At: now(), Lock: a.index, Key: key, ID: id})
	g, err := w.client.acquire(waiting, a, try)
	if err == nil {
		a.hold(ctx, g, id, key, calm)
		return
	}
	w.tell(report{Op: opFailed, At: now(), Lock: a.index, Key: key, ID: id, Text: errorCode(err)})
	if errors.Is(err, holdfast.ErrSucceeded) {
		a.key++
		a.tellServed(calm)
	}
}

func (a *actor) tellServed(calm bool) {
	if calm && !a.served {
		a.served = true
		a.worker.tell(report{Op: opServed, Lock: a.index})
	}
}

// errorCode is a short text for an error that is expected, or the error's own text.
func errorCode(err error) string {
	for _, known := range []struct {
		err  error
		code string
	}{{holdfast.ErrSucceeded, "succeeded"}, {holdfast.ErrHeld, "held"}, {context.DeadlineExceeded, "timeout"},
		{context.Canceled, "timeout"}, {holdfast.ErrQueueFull, "queue full"}, {holdfast.ErrUncertain, "uncertain"}} {
		if errors.Is(err, known.err) {
			return known.code
		}
	}
	return err.Error()
}

// hold believes in the lock for a while, and releases it.
func (a *actor) hold(ctx context.Context, g *grant, id, key int64, calm bool) {
	w := a.worker
	at := now()
	valid := g.Valid()
	if !valid { // the worker was stopped, or the answer came late: it never believed that the lock was its own
		w.tell(report{Op: opFailed, At: at, Lock: a.index, Key: key, ID: id, Text: "expired before it was used"})
		_, _ = g.release()
		return
	}
	w.marks.set(a.index, at)
	w.tell(report{Op: opHeld, At: at, Lock: a.index, Key: key, ID: id, Token: g.Token(), Weight: g.weight})
	last := at
	length := a.holdTime(calm)
	exclusive := g.weight == a.lock.Limit
	for valid && now()-at < int64(length) && ctx.Err() == nil {
		if exclusive && a.rnd.IntN(3) == 0 {
			a.write(ctx, g, id, key)
		}
		time.Sleep(markInterval)
		t := now()
		if valid = g.Valid(); valid {
			w.marks.set(a.index, t)
			last = t
		}
	}
	end := report{Op: opEnded, Lock: a.index, Key: key, ID: id, Token: g.Token(), Last: last, Called: now()}
	if !valid && !g.told() {
		end.How = howUnreported
	}
	how, err := g.release()
	end.At = now()
	var loss *holdfast.LossError
	switch {
	case end.How != "":
	case err == nil:
		end.How = how
	case errors.As(err, &loss):
		end.How, end.Cause = howLost, string(loss.Cause)
	default:
		end.How, end.Text = howUncertain, err.Error()
	}
	w.tell(end)
	a.tellServed(calm)
}

// holdTime is how long the lock is held: mostly short, and sometimes for several renewals.
func (a *actor) holdTime(calm bool) time.Duration {
	if !calm && a.rnd.IntN(a.worker.task.Long) == 0 {
		return time.Duration(a.rnd.Int64N(int64(2 * a.worker.task.TTL)))
	}
	return time.Duration(a.rnd.Int64N(int64(20 * time.Millisecond)))
}

// write does what locks are for: it reads a value, works, and writes the value plus one. It checks the lease before it
// writes, as a careful program does.
func (a *actor) write(ctx context.Context, g *grant, id, key int64) {
	w := a.worker
	reply := func() (o order, ok bool) {
		select {
		case o = <-a.replies:
			return o, true
		case <-ctx.Done():
			return o, false
		}
	}
	w.tell(report{Op: opRead, Lock: a.index, Key: key})
	value, ok := reply()
	time.Sleep(time.Millisecond)
	if !ok || !g.Valid() {
		return
	}
	w.tell(report{Op: opWrite, Lock: a.index, Key: key, ID: id, Value: value.Value + 1})
	reply()
}
