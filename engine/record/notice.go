package record

import (
	"context"
	"iter"
	"slices"
	"time"
)

// A queue can be long, and most changes concern only its head: the claims that are promoted, and the first one that
// waits. The others are far from it. Their hubs do not look at changes; they listen for a notice, which each swap
// sends to the head, where the table is a [ClientNotifier]. Where no notice is lost, because all clients are processes
// of one machine, or because the store sends them with the swap, the hub of the head listens for a notice as well.

// notice is what such a hub listens to. It is used by the hub's goroutine only.
type notice struct {
	noticed <-chan struct{}
	stop    func() // nil if the hub does not listen
	version string // of the row, when the hub last began to listen; empty if that does not matter any more
}

// clientsToNotify returns the sessions of other clients that must look at a record once it has replaced another one: those
// of the claims that are promoted, of the first one that waits, and of a waiter that was broken. This client's own hub is
// notified without the store. If the notices are sent with the swap, those that the record before has concerned in the same
// way were notified then, and are not once more, unless a claim is detached: it may end sooner than they know.
func (e *engine) clientsToNotify(before, rec *Record) (sessions []string) {
	if e.clientNotifier == nil {
		return nil
	}
	own := e.clientNotifier.Session()
	add := func(session string) {
		if session != "" && session != own && !slices.Contains(sessions, session) {
			sessions = append(sessions, session)
		}
	}
	add(rec.brokenSession)
	all := e.sureNotifier == nil ||
		slices.ContainsFunc(rec.Claims, func(c Claim) bool { return c.Detached && c.renewed }) // by this step
	for c := range rec.claimsAtHead() {
		if all || !before.hasAtHead(c) {
			add(c.Session)
		}
	}
	return sessions
}

// claimsAtHead yields the claims that are promoted, and the first one that waits.
func (r *Record) claimsAtHead() iter.Seq[*Claim] {
	return func(yield func(*Claim) bool) {
		oneWaits := false
		for i := range r.Claims {
			c := &r.Claims[i]
			atHead := c.State == Promoted || c.State == Waiting && !oneWaits // a promoted one may be behind one that waits
			if atHead && !yield(c) {
				return
			}
			oneWaits = oneWaits || c.State == Waiting
		}
	}
}

// hasAtHead reports whether a claim is at the head of the queue in the same state.
func (r *Record) hasAtHead(c *Claim) bool {
	for other := range r.claimsAtHead() {
		if other.ID == c.ID && other.State == c.State {
			return true
		}
	}
	return false
}

// claimsAhead returns the claims ahead of the hub's first one if the hub need not look at changes until it is notified,
// and otherwise nil: all of its claims are in the queue, and far from its head unless notices are sure.
func (h *waiterHub) claimsAhead(rec *Record) (ahead []Claim) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	h.awaitsNotice = false
	if h.e.clientNotifier == nil || len(h.subscribers) == 0 {
		return nil
	}
	first := len(rec.Claims)
	for sub := range h.subscribers {
		if !sub.inQueue || sub.observe(rec) && !h.e.sureNotices {
			return nil
		}
		for i := range rec.Claims[:first] {
			if rec.Claims[i].ID == sub.id {
				first = i
				break
			}
		}
	}
	h.awaitsNotice = true
	return rec.Claims[:first]
}

// listenTimeout is how long a hub waits for the table to listen, beside some round trips. Meanwhile it looks at nothing.
const listenTimeout = 250 * time.Millisecond

// awaitNotice begins to listen for a notice if the hub may do so, and otherwise ends that. version is that of the row as the
// hub knows it. It reports whether the row must be loaded once more: this client may not have been notified of what
// changed before it listened.
//
// If the table cannot listen, the hub looks at all changes until the next load. If a notice brought no change, it does
// so until the row changes: a table that cannot notify any more may say that by a notice, again and again.
func (h *waiterHub) awaitNotice(ctx context.Context, mayListen bool, version string) (loadNow bool) {
	if h.notice.stop != nil {
		select {
		case <-h.notice.noticed:
			listenedAt := h.notice.version
			h.endNotice()
			h.notice.version = listenedAt
		default:
		}
	}
	switch {
	case !mayListen:
		h.endNotice()
	case h.notice.stop == nil && (h.notice.version != version || h.e.sureNotices):
		ctx, cancel := context.WithTimeout(ctx, listenTimeout+4*h.e.roundTrip())
		defer cancel()
		noticed, stop, err := h.e.clientNotifier.ListenForNotice(ctx, h.name)
		if err == nil {
			h.notice = notice{noticed, stop, version}
			return h.e.sureNotifier == nil || h.e.sureNotifier.MayHaveMissedNotice(h.name, version)
		}
	}
	return false
}

func (h *waiterHub) endNotice() {
	if h.notice.stop != nil {
		h.notice.stop()
	}
	h.notice = notice{}
}

// stoppedPoll is the longest time between two loads of the hub of the head of the queue, if it listens for a notice. The
// client that has released the lock may have been stopped before it sent that.
const stoppedPoll = time.Second

// isNext reports whether the hub of the head of the queue is the one with these claims ahead of its first.
func isNext(ahead []Claim) bool {
	return len(ahead) > 0 && !slices.ContainsFunc(ahead, func(c Claim) bool { return c.State == Waiting })
}

// claimsToCheck returns the claims whose clients a hub checks for being alive, at its check with that number. Of the
// hubs that await a notice, that of the head of the queue checks all claims ahead of it, each of which keeps it waiting.
// The others check the claim just ahead of them each time, and the rest the more rarely the more of them there are: so
// the checks of all clients cost the same however long the queue is, and a client that dies has one behind it that
// notices.
func claimsToCheck(rec *Record, ahead []Claim, check int) []Claim {
	switch n := len(ahead); {
	case n == 0:
		return rec.Claims
	case isNext(ahead), check%n == 0:
		return ahead
	default:
		return ahead[n-1:]
	}
}
