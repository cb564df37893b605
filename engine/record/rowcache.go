package record

import (
	"container/list"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// The rows of a client, as it saw them last, are kept so that the next step can do without a load; what is forgotten costs one.
const (
	maxUsedRows  = 1 << 17   // rows of locks on which somebody stands
	maxIdleBytes = 8 << 20   // of the rows of idle locks, about
	usedRowKeep  = time.Hour // how long a row is kept on which somebody stands, if it is not looked at
)

// knownRows are rows as they were seen last. They are forgotten by their number, or size, and by their age.
type knownRows struct {
	byName     map[string]*list.Element
	idle, used ageList
}

// ageList has rows in the order in which they were seen, the last one in front.
type ageList struct {
	order list.List // of *knownRow
	bytes int
}

type knownRow struct {
	snapshot
	seenAt driver.Instant
	bytes  int
	list   *ageList
}

func (k *knownRows) getRow(name string) (snapshot, bool) {
	at, ok := k.byName[name]
	if !ok {
		return snapshot{}, false
	}
	return at.Value.(*knownRow).snapshot, true
}

func (k *knownRows) putRow(s snapshot, now driver.Instant) {
	k.dropRow(s.row.Name)
	r := &knownRow{snapshot: s, seenAt: now, bytes: s.size(), list: &k.idle}
	if len(s.rec.Claims) > 0 {
		r.list = &k.used
	}
	r.list.bytes += r.bytes
	k.byName[s.row.Name] = r.list.order.PushFront(r)
}

func (k *knownRows) dropRow(name string) {
	if at, ok := k.byName[name]; ok {
		r := at.Value.(*knownRow)
		r.list.bytes -= r.bytes
		r.list.order.Remove(at)
		delete(k.byName, name)
	}
}

// trimRows forgets what has not been seen for long, and what is too much. The record of a lock that has been idle for idleKeep may not be
// there any more.
func (k *knownRows) trimRows(now driver.Instant, idleKeep time.Duration) {
	k.trimList(&k.idle, func(r *knownRow) bool { return k.idle.bytes > maxIdleBytes || now.Since(r.seenAt) > idleKeep })
	k.trimList(&k.used, func(r *knownRow) bool { return k.used.order.Len() > maxUsedRows || now.Since(r.seenAt) > usedRowKeep })
}

func (k *knownRows) trimList(s *ageList, tooOld func(*knownRow) bool) {
	for last := s.order.Back(); last != nil && tooOld(last.Value.(*knownRow)); last = s.order.Back() {
		k.dropRow(last.Value.(*knownRow).row.Name)
	}
}

// size is about how much memory a row takes whose lock is idle.
func (s snapshot) size() int {
	const fixed, note = 400, 64
	n := fixed + len(s.row.Name) + len(s.row.Version)
	for _, e := range s.rec.Ended {
		n += note + len(e.ID)
	}
	return n
}

// pendingSwap is a swap of unknown outcome that may still be under way.
type pendingSwap struct {
	replaces string         // the version that it would replace
	since    driver.Instant // when it was left to itself
	keep     time.Duration  // for how long its claim may be released
}

// pendingSwaps are those of a client, by claim id, for the releases of the claims. Not every claim is released: the client gives that up
// after the claim's TTL, when the claim has ended by itself.
type pendingSwaps struct {
	byClaim map[string]pendingSwap
	trimmed driver.Instant
}

const (
	maxPendingSwaps = 1 << 14
	trimEvery       = time.Minute
)

func (f *pendingSwaps) addSwap(id string, over string, ttl time.Duration, now driver.Instant) {
	f.byClaim[id] = pendingSwap{replaces: over, since: now, keep: 2*ttl + trimEvery}
	f.trimSwaps(now)
	for other := range f.byClaim {
		if len(f.byClaim) <= maxPendingSwaps {
			break
		}
		delete(f.byClaim, other)
	}
}

// trimSwaps forgets those whose claims nobody releases any more.
func (f *pendingSwaps) trimSwaps(now driver.Instant) {
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
