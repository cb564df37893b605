package record

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// A client keeps the rows as it last saw them, so that the next step needs no load. A row that it has forgotten costs
// one refused swap, or one load.
const (
	maxOwnRows   = 1 << 17   // rows of locks that this client alone has a claim on, and that can be packed
	maxWholeRows = 256       // of these, those that are not packed
	maxIdleBytes = 8 << 20   // all rows of idle locks together, about
	maxUsedBytes = 8 << 20   // all rows of other locks with claims together, about
	usedRowKeep  = time.Hour // how long the row of a lock with claims is kept unused, and a packed one up to a quarter more
)

// knownRows are the rows as last seen. They are limited by their size and their age. Those of locks that this client
// alone holds are limited by their number: each belongs to a lease, and has no more than that one claim. A row that
// others write, too, is often outdated, so that little is lost with it.
type knownRows struct {
	byName map[string]*knownRow
	idle   ageList
	used   ageList    // rows of locks with claims, but for those that can be packed
	single ageList    // the newest that can be packed
	packed packedRows // the older ones
}

// ageList has rows in the order in which they were seen. Its links are in the rows: a row changes its place with each
// step on a lock.
type ageList struct {
	newest, oldest *knownRow
	length, bytes  int
}

type knownRow struct {
	snapshot
	seenAt       driver.Instant
	pace         handOverPace // not known any more once the row was forgotten, or packed
	bytes        int
	list         *ageList
	newer, older *knownRow // in the list
}

// addNewest adds a row that is in no list.
func (l *ageList) addNewest(r *knownRow) {
	r.list, r.older = l, l.newest
	if l.newest == nil {
		l.oldest = r
	} else {
		l.newest.newer = r
	}
	l.newest = r
	l.length++
	l.bytes += r.bytes
}

// remove removes a row that is in the list.
func (l *ageList) remove(r *knownRow) {
	if r.newer == nil {
		l.newest = r.older
	} else {
		r.newer.older = r.older
	}
	if r.older == nil {
		l.oldest = r.newer
	} else {
		r.older.newer = r.newer
	}
	r.list, r.newer, r.older = nil, nil, nil
	l.length--
	l.bytes -= r.bytes
}

func newKnownRows() knownRows {
	return knownRows{byName: map[string]*knownRow{}, packed: packedRows{byName: map[string]*packedRow{}}}
}

// getRow returns the row of a name, if it is known.
func (k *knownRows) getRow(name string) (knownRow, bool) {
	if r, ok := k.byName[name]; ok {
		return *r, true
	}
	if p, ok := k.packed.byName[name]; ok {
		return p.unpack(name), true
	}
	return knownRow{}, false
}

// getVersion returns the version of a row, if it is known.
func (k *knownRows) getVersion(name string) (string, bool) {
	if r, ok := k.byName[name]; ok {
		return r.row.Version, true
	}
	if p, ok := k.packed.byName[name]; ok {
		return p.version, true
	}
	return "", false
}

// putRow remembers a row that was just read or written, in the list from which it will be dropped: rows without
// claims go first, and rows with one claim of this process are packed when there are many.
func (k *knownRows) putRow(s snapshot, now driver.Instant) {
	r, pace := k.dropRow(s.row.Name), handOverPace{changed: now}
	if r != nil {
		pace = r.pace.next(r.rec, s.rec, now)
	}
	in := &k.used
	switch {
	case len(s.rec.Claims) == 0:
		in = &k.idle
	case s.isPackable() && s.rec.Claims[0].own:
		in = &k.single
		if k.single.length >= maxWholeRows {
			r = k.packOldest()
		}
	}
	if r == nil {
		r = &knownRow{}
	}
	*r = knownRow{snapshot: s, seenAt: now, pace: pace, bytes: s.size()}
	in.addNewest(r)
	k.byName[s.row.Name] = r
}

// packOldest packs the row that was not used for longest, and returns its memory.
func (k *knownRows) packOldest() *knownRow {
	r := k.single.oldest
	k.dropRow(r.row.Name)
	k.packed.addRow(r.snapshot, r.seenAt)
	return r
}

// dropRow forgets a row. It returns the row if it was known and not packed, and otherwise nil.
func (k *knownRows) dropRow(name string) *knownRow {
	delete(k.packed.byName, name)
	r := k.byName[name]
	if r != nil {
		r.list.remove(r)
		delete(k.byName, name)
	}
	return r
}

// trimRows forgets rows that were not seen for long, and the oldest ones if there are too many. The record of a lock
// that has been idle for idleKeep may have been deleted.
func (k *knownRows) trimRows(now driver.Instant, idleKeep time.Duration) {
	k.trimList(&k.idle, func(r *knownRow) bool { return k.idle.bytes > maxIdleBytes || now.Since(r.seenAt) > idleKeep })
	k.trimList(&k.used, func(r *knownRow) bool { return k.used.bytes > maxUsedBytes || now.Since(r.seenAt) > usedRowKeep })
	k.trimList(&k.single, func(r *knownRow) bool { return now.Since(r.seenAt) > usedRowKeep })
	k.packed.trimRows(now)
}

func (k *knownRows) trimList(s *ageList, tooOld func(*knownRow) bool) {
	for s.oldest != nil && tooOld(s.oldest) {
		k.dropRow(s.oldest.row.Name)
	}
}

// size is about how much memory a row takes.
func (s snapshot) size() int {
	const fixed, note, claim = 400, 64, 256
	n := fixed + len(s.row.Name) + len(s.row.Version)
	for i := range s.rec.Claims {
		c := &s.rec.Claims[i]
		n += claim + len(c.ID) + len(c.Session) + len(c.Owner) + len(c.Meta) + len(c.BreakReason)
	}
	for _, e := range s.rec.Ended {
		n += note + len(e.ID) + len(e.Reason)
	}
	return n + s.rec.Runs.size()
}

// pendingSwap is a swap of unknown outcome that may still be on its way to the store.
type pendingSwap struct {
	replaces string         // the version that it would replace
	since    driver.Instant // when its Acquire gave up
	keep     time.Duration  // how long a release of its claim may follow
}

// pendingSwaps are the pending swaps of a client by claim id. The releases of the claims look for them. Not every
// claim is released: a client stops trying after the claim's TTL, when the claim has expired.
type pendingSwaps struct {
	byClaim map[string]pendingSwap
	trimmed driver.Instant
}

const (
	maxPendingSwaps = 1 << 14
	trimEvery       = time.Minute
)

// addSwap remembers a swap without a reply for as long as it may decide what happened to its claim. If there are
// too many, any other is forgotten; its claim then ends as unknown.
func (p *pendingSwaps) addSwap(id, replaces string, ttl time.Duration, now driver.Instant) {
	p.byClaim[id] = pendingSwap{replaces: replaces, since: now, keep: 2*ttl + trimEvery}
	p.trimSwaps(now)
	for other := range p.byClaim {
		if len(p.byClaim) <= maxPendingSwaps {
			break
		}
		delete(p.byClaim, other)
	}
}

// trimSwaps forgets the swaps whose claims nobody releases any more.
func (p *pendingSwaps) trimSwaps(now driver.Instant) {
	if len(p.byClaim) == 0 || now.Since(p.trimmed) < trimEvery {
		return
	}
	p.trimmed = now
	for id, s := range p.byClaim {
		if now.Since(s.since) > s.keep {
			delete(p.byClaim, id)
		}
	}
}
