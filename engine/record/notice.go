package record

import (
	"iter"
	"slices"
)

// A queue can be long, and most changes concern only its head: the claims that are promoted, and the first one that
// waits. So where a swap can notify single clients, it notifies those, and the hubs of claims in the queue wait for
// nothing else.

// clientsToNotify returns the sessions of other clients that must look at a record once it has replaced another one:
// those of the claims that are promoted, of the first one that waits, and of a waiter that was broken. This client's
// own hub is notified without the store. Those that the record before has concerned in the same way were notified
// then, and are not once more, unless that may have failed ([Traits].PeerNotices), or a claim is detached: it may end
// sooner than they know.
func (e *engine) clientsToNotify(before, rec *Record) (sessions []string) {
	if e.watcher == nil {
		return nil
	}
	own := e.watcher.Session()
	if own == "" {
		return nil
	}
	add := func(session string) {
		if session != "" && session != own && !slices.Contains(sessions, session) {
			sessions = append(sessions, session)
		}
	}
	add(rec.brokenSession)
	all := e.traits.PeerNotices ||
		slices.ContainsFunc(rec.Claims, func(c Claim) bool { return c.Detached && c.renewed }) // by this step
	for c := range rec.claimsAtHead() {
		if all || !before.hasAtHead(c) {
			add(c.Session)
		}
	}
	return sessions
}

// claimsAtHead yields the claims that are promoted, and the first one that waits. A promoted claim can stand behind
// one that waits: after a promoted claim has not confirmed, all the next ones are promoted, and the claim whose call
// finds this out waits again if it does not fit yet (see acquireAgain).
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

// claimsAhead returns the claims ahead of the hub's first one, if all of its claims are in the queue. It is called
// with mu held.
func (h *waiterHub) claimsAhead(rec *Record) []Claim {
	if h.place != InQueue {
		return nil
	}
	for i := range rec.Claims {
		if h.serves(rec.Claims[i].ID) {
			return rec.Claims[:i]
		}
	}
	return rec.Claims
}

// isNext reports whether the hub of the head of the queue is the one with these claims ahead of its first.
func isNext(ahead []Claim) bool {
	return len(ahead) > 0 && !slices.ContainsFunc(ahead, func(c Claim) bool { return c.State == Waiting })
}

// claimsToCheck returns the claims whose clients a hub checks for being alive, at its check with that number. Of the
// hubs that await a notice, that of the head of the queue checks all claims ahead of it, each of which keeps it
// waiting. The others check the claim just ahead of them each time, and the rest the more rarely the more of them
// there are: so the checks of all clients cost the same however long the queue is, and a client that dies has one
// behind it that notices.
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
