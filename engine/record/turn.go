package record

import (
	"context"
	"time"
)

const (
	// turnPoll is the longest time between two loads of a hub that waits for its turn. The client that has the turn may
	// have been stopped.
	turnPoll = time.Second
	// turnPause is how long a hub that has passed its turn on leaves it to others.
	turnPause = 2 * time.Millisecond
)

// turn is a hub's turn to look at changes of its lock: see [TurnTaker]. It is used by the hub's goroutine only.
type turn struct {
	pass        func() // nil without the turn
	offered     bool   // a claim was notified that it may be granted: the turn has served its purpose
	passed      bool   // the last turn was passed on by this hub
	unavailable bool   // the table has no turns at present

	// request is the call of TakeTurn that is under way, if there is one. It goes on while the hub polls, so that it keeps
	// its place among those of other clients.
	request <-chan takenTurn
	cancel  context.CancelFunc // ends it
}

// takenTurn is what a call of TakeTurn returned.
type takenTurn struct {
	pass func()
	err  error
}

// noteTurnNeed notes and reports whether the hub waits for its turn before it looks at changes. A hub with claims in the queue never
// does: each change may concern them.
func (h *waiterHub) noteTurnNeed() bool {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	h.awaitsTurn = h.e.turnTaker != nil && h.turn.pass == nil && !h.turn.unavailable
	for sub := range h.subscribers {
		h.awaitsTurn = h.awaitsTurn && !sub.inQueue
	}
	return h.awaitsTurn
}

// takeTurn waits for the turn. It returns false if the row should be loaded without it, and then whether somebody asked
// for that.
func (h *waiterHub) takeTurn(ctx context.Context) (taken, asked bool) {
	poll := time.NewTimer(turnPoll/2 + randomPart(turnPoll/2))
	defer poll.Stop()
	if h.turn.passed {
		h.turn.passed = false
		pause := time.NewTimer(turnPause)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-h.loadNow:
			return false, true
		case <-ctx.Done():
			return false, false
		}
	}
	if h.turn.request == nil {
		h.requestTurn(ctx)
	}
	select {
	case got := <-h.turn.request:
		h.turn.cancel()
		h.turn.request, h.turn.pass = nil, got.pass
		h.turn.unavailable = got.err != nil && ctx.Err() == nil
		return got.err == nil || h.turn.unavailable, false
	case <-h.loadNow:
		return false, true
	case <-poll.C:
	case <-ctx.Done():
	}
	return false, false
}

func (h *waiterHub) requestTurn(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	request := make(chan takenTurn, 1)
	h.turn.request, h.turn.cancel = request, cancel
	go func() {
		pass, err := h.e.turnTaker.TakeTurn(ctx, h.name)
		request <- takenTurn{pass, err}
	}()
}

// withdrawRequest ends the request for the turn, and passes the turn on if the request was granted meanwhile.
func (h *waiterHub) withdrawRequest() {
	if h.turn.request == nil {
		return
	}
	h.turn.cancel()
	if got := <-h.turn.request; got.pass != nil {
		got.pass()
	}
	h.turn.request = nil
}

// passTurn gives the turn to another client, if this one has it.
func (h *waiterHub) passTurn() {
	if h.turn.pass != nil {
		h.turn.pass()
		h.turn.pass, h.turn.passed = nil, true
	}
	h.turn.offered = false
}

// endTurn ends the hub's part in the turns.
func (h *waiterHub) endTurn() {
	h.withdrawRequest()
	h.passTurn()
}
