package record

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// A hub that nothing notifies must load the row to learn that its turn has come. A load costs money, and each turn that
// it learns of late costs all that wait. So a client remembers how long a turn takes on each lock. The hub of the head
// of the queue looks four times in that time; the others look when half of the turns ahead of them must be over. A
// hand-over then costs four loads, and two or three more for each time that the number of clients doubles.

// handOverPace is how fast a lock goes from claim to claim, as this client has seen it.
type handOverPace struct {
	turn    time.Duration  // about how long it takes until a claim leaves; 0: not known
	changed driver.Instant // when a claim was last seen to have left, or to have come to a lock that was free
}

// next returns the pace when the row is seen again. Claims keep their order.
func (p handOverPace) next(before, rec *Record, now driver.Instant) handOverPace {
	left, rest := 0, rec.Claims
	for i := range before.Claims {
		if len(rest) > 0 && rest[0].ID == before.Claims[i].ID {
			rest = rest[1:]
		} else {
			left++
		}
	}
	switch {
	case len(before.Claims) == 0:
		return handOverPace{p.turn, now}
	case left == 0:
		return p
	}
	// One turn that lasts long, such as the time in which a client is stopped, must not slow down all that wait: they
	// would come late themselves, and the next ones even later.
	turn := max(now.Since(p.changed)/time.Duration(left), 1)
	if p.turn > 0 && turn > p.turn {
		turn = (p.turn + min(turn, 2*p.turn)) / 2
	}
	return handOverPace{turn, now}
}

const (
	minPacedPoll = time.Millisecond // the shortest time between two loads of a hub that knows the pace
	maxPoll      = time.Second      // the longest without a notice: less than a promoted claim's time to confirm
)

// pollDelay is the time until the next load of a hub whose first claim fits when so many claims have left, and one at
// least. since is how long ago one has left. When a turn lasts for longer than two usual ones, the delay grows by half
// from load to load.
func (p handOverPace) pollDelay(ahead int, since, roundTrip time.Duration) time.Duration {
	d := p.turn / 4
	if ahead > 1 {
		d = time.Duration(ahead-1) * (p.turn / 2)
	}
	return min(max(d, (since-2*p.turn)/2, roundTrip, minPacedPoll), maxPoll)
}

// pacedDelay is the time until the next load of a hub whose claims wait in the queue of a lock whose pace is known.
func (h *waiterHub) pacedDelay(rec *Record) (d time.Duration, ok bool) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	known, _ := h.e.rows.getRow(h.name)
	ahead := h.claimsToLeave(rec)
	if known.pace.turn == 0 || ahead == 0 {
		return 0, false
	}
	return known.pace.pollDelay(ahead, h.e.clock.Since(known.pace.changed), h.e.rtt), true
}

// claimsToLeave returns how many claims must leave before the first of the hub's fits, if all of those are in the
// queue. It is called with mu held.
func (h *waiterHub) claimsToLeave(rec *Record) (n int) {
	if h.place != InQueue {
		return 0
	}
	var weight int64
	for i := range rec.Claims {
		if weight += rec.Claims[i].Weight; !h.serves(rec.Claims[i].ID) {
			continue
		}
		for ; weight > rec.Limit && n < i; n++ {
			weight -= rec.Claims[n].Weight
		}
		return n
	}
	return 0
}
