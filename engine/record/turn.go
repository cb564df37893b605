package record

import (
	"context"
	"time"
)

// turnPause is how long a client that has passed its turn on leaves it to others.
const turnPause = 2 * time.Millisecond

// WithTurns returns a Watch for a table whose clients are many processes on one machine. If hundreds of them wait for
// one lock and all of them look at each change, each change costs hundreds of loads and as many writes that come too
// late. With turns, one process at a time looks at the changes and tries to take the lock. Claims in the queue need
// no turn.
//
// take blocks until this client has the turn, and returns a function that passes the turn on, to one of those that wait
// for it. It returns an error when ctx ends, or if there are no turns at present. A turn ends with its process. It is a
// matter of speed only: the engine relies on it for nothing, and polls while it has no turn, since the process that has
// it may have been stopped.
func WithTurns(watch Watch, take func(ctx context.Context) (pass func(), err error)) Watch {
	return &turnWatch{Watch: watch, take: take}
}

type turnWatch struct {
	Watch
	take        func(ctx context.Context) (pass func(), err error)
	pass        func() // nil without the turn
	passed      bool   // the last turn was passed on by this client
	unavailable bool   // there are no turns at present

	// request is the call of take that is under way, if there is one. It goes on between two calls of Wait, so that it
	// keeps its place among those of other clients.
	request <-chan takenTurn
	cancel  context.CancelFunc // ends it
}

// takenTurn is what a call of take returned.
type takenTurn struct {
	pass func()
	err  error
}

func (w *turnWatch) HasTurn() bool { return w.pass != nil || w.unavailable }

// Wait returns nil when this client takes its turn: it has not looked before.
func (w *turnWatch) Wait(ctx context.Context, version string, place Place) (Row, error) {
	if place != Outside {
		w.withdraw()
	} else if !w.HasTurn() {
		return Row{}, w.takeTurn(ctx)
	}
	return w.Watch.Wait(ctx, version, place)
}

// takeTurn returns when this client has the turn, or there are none.
func (w *turnWatch) takeTurn(ctx context.Context) error {
	if w.passed {
		w.passed = false
		pause := time.NewTimer(turnPause)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if w.request == nil {
		w.requestTurn()
	}
	select {
	case got := <-w.request:
		w.cancel()
		w.request, w.pass, w.unavailable = nil, got.pass, got.err != nil
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// requestTurn asks for the turn in the background. The answer arrives in w.request.
func (w *turnWatch) requestTurn() {
	ctx, cancel := context.WithCancel(context.Background())
	request := make(chan takenTurn, 1)
	w.request, w.cancel = request, cancel
	go func() {
		pass, err := w.take(ctx)
		request <- takenTurn{pass, err}
	}()
}

// withdraw ends the request for the turn, and passes the turn on if the request was granted meanwhile.
func (w *turnWatch) withdraw() {
	if w.request == nil {
		return
	}
	w.cancel()
	if got := <-w.request; got.pass != nil {
		got.pass()
	}
	w.request = nil
}

// PassTurn lets the next waiter of the queue go on. A second call does nothing.
func (w *turnWatch) PassTurn() {
	if w.pass != nil {
		w.pass()
		w.pass, w.passed = nil, true
	}
}

func (w *turnWatch) Stop() {
	w.withdraw()
	w.PassTurn()
	w.Watch.Stop()
}
