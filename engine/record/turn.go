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
	offered     bool   // a claim was told that it may be granted: the turn has served its purpose
	passed      bool   // the last turn was passed on by this hub
	unavailable bool   // the table has no turns at present
}

// needsTurn reports whether the hub waits for its turn before it looks at changes. A hub with claims in the queue never
// does: each change may concern them.
func (h *waiterHub) needsTurn() bool {
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
	ctx, cancel := context.WithTimeout(ctx, turnPoll/2+randomPart(turnPoll/2))
	defer cancel()
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
	done := make(chan error, 1)
	go func() {
		var err error
		h.turn.pass, err = h.e.turnTaker.TakeTurn(ctx, h.name)
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-h.loadNow:
		asked = true
		cancel()
		err = <-done
	}
	h.turn.unavailable = err != nil && ctx.Err() == nil
	return (err == nil || h.turn.unavailable) && !asked, asked
}

// passTurn gives the turn to another client, if this one has it.
func (h *waiterHub) passTurn() {
	if h.turn.pass != nil {
		h.turn.pass()
		h.turn.pass, h.turn.passed = nil, true
	}
	h.turn.offered = false
}
