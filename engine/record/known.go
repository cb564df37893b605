package record

import (
	"container/list"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// The rows of a client, as it saw them last, are kept so that the next step can do without a load; what is forgotten costs one.
const (
	maxKnown     = 1 << 17   // rows of locks on which somebody stands
	maxIdleBytes = 8 << 20   // of the rows of idle locks, about
	usedKeep     = time.Hour // how long a row is kept on which somebody stands, if it is not looked at
)

// knownRows are rows as they were seen last. They are forgotten by their number, or size, and by their age.
type knownRows struct {
	byName     map[string]*list.Element
	idle, used shelf
}

// shelf has rows in the order in which they were seen, the last one in front.
type shelf struct {
	order list.List // of *knownRow
	bytes int
}

type knownRow struct {
	sight
	seen  driver.Instant
	bytes int
	on    *shelf
}

func (k *knownRows) get(name string) (sight, bool) {
	at, ok := k.byName[name]
	if !ok {
		return sight{}, false
	}
	return at.Value.(*knownRow).sight, true
}

func (k *knownRows) put(s sight, now driver.Instant) {
	k.drop(s.row.Name)
	r := &knownRow{sight: s, seen: now, bytes: s.size(), on: &k.idle}
	if len(s.rec.Claims) > 0 {
		r.on = &k.used
	}
	r.on.bytes += r.bytes
	k.byName[s.row.Name] = r.on.order.PushFront(r)
}

func (k *knownRows) drop(name string) {
	if at, ok := k.byName[name]; ok {
		r := at.Value.(*knownRow)
		r.on.bytes -= r.bytes
		r.on.order.Remove(at)
		delete(k.byName, name)
	}
}

// trim forgets what has not been seen for long, and what is too much. The record of a lock that has been idle for idleKeep may not be
// there any more.
func (k *knownRows) trim(now driver.Instant, idleKeep time.Duration) {
	k.trimShelf(&k.idle, func(r *knownRow) bool { return k.idle.bytes > maxIdleBytes || now.Since(r.seen) > idleKeep })
	k.trimShelf(&k.used, func(r *knownRow) bool { return k.used.order.Len() > maxKnown || now.Since(r.seen) > usedKeep })
}

func (k *knownRows) trimShelf(s *shelf, tooOld func(*knownRow) bool) {
	for last := s.order.Back(); last != nil && tooOld(last.Value.(*knownRow)); last = s.order.Back() {
		k.drop(last.Value.(*knownRow).row.Name)
	}
}

// size is about how much memory a row takes whose lock is idle.
func (s sight) size() int {
	const fixed, note = 400, 64
	n := fixed + len(s.row.Name) + len(s.row.Version)
	for _, e := range s.rec.Ended {
		n += note + len(e.ID)
	}
	return n
}

// flight is a swap of unknown outcome that may still be under way.
type flight struct {
	over  string         // the version that it would replace
	since driver.Instant // when it was left to itself
	keep  time.Duration  // for how long its claim may be released
}

// flights are those of a client, by claim id, for the releases of the claims. Not every claim is released: the client gives that up
// after the claim's TTL, when the claim has ended by itself.
type flights struct {
	byClaim map[string]flight
	trimmed driver.Instant
}

const (
	maxFlights = 1 << 14
	trimEvery  = time.Minute
)

func (f *flights) put(id string, over string, ttl time.Duration, now driver.Instant) {
	f.byClaim[id] = flight{over: over, since: now, keep: 2*ttl + trimEvery}
	f.trim(now)
	for other := range f.byClaim {
		if len(f.byClaim) <= maxFlights {
			break
		}
		delete(f.byClaim, other)
	}
}

// trim forgets those whose claims nobody releases any more.
func (f *flights) trim(now driver.Instant) {
	if len(f.byClaim) == 0 || now.Since(f.trimmed) < trimEvery {
		return
	}
	f.trimmed = now
	for id, fl := range f.byClaim {
		if now.Since(fl.since) > fl.keep {
			delete(f.byClaim, id)
		}
	}
}
