package record

import (
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// packedRows are rows in a form that takes a fourth of the memory. A process may hold very many locks, each with a row
// that is used once in a third of its TTL.
type packedRows struct {
	byName  map[string]*packedRow
	terms   driverutil.Shared[packedTerms]
	trimmed driver.Instant
}

// packedRow is the row of a lock with one claim and nothing else. It has 96 bytes, which is one of the sizes in which
// Go allocates. The version that this client has replaced by it is not kept: so a load that is answered only after
// maxWholeRows other rows were used may bring that version back. Then the next swap is refused, as with a row that was
// forgotten.
type packedRow struct {
	*packedTerms
	version                string
	lastToken              int64 // of the record
	id                     string
	token                  int64
	beat, expiresAt, since int64
	seenAt                 driver.Instant
}

// packedTerms are what a row has in common with others: the locks of one client are mostly used alike.
type packedTerms struct {
	marked bool
	kind   driver.Kind
	limit  int64
	claim  Claim // without what each packedRow has of its own
}

// isPackable reports whether a row can be packed without loss, except of the version before it, and of what the engine
// sets for a Swap alone.
func (s *snapshot) isPackable() bool {
	r := s.rec
	return len(r.Claims) == 1 && len(r.Ended) == 0 && r.NotesDroppedUntil == 0 && r.Runs == nil && r.Idle == 0 &&
		r.Foreign == 0 && s.row.Foreign == 0 && !s.row.untimed
}

// addRow packs a row.
func (k *packedRows) addRow(s snapshot, seenAt driver.Instant) {
	c := s.rec.Claims[0]
	p := &packedRow{version: s.row.Version, lastToken: s.rec.Token, id: c.ID, token: c.Token,
		beat: c.Beat, expiresAt: c.ExpiresAt, since: c.Since, seenAt: seenAt}
	c.ID, c.Token, c.Beat, c.ExpiresAt, c.Since = "", 0, 0, 0, 0
	p.packedTerms = k.terms.Get(&packedTerms{marked: s.row.Marked, kind: s.rec.Kind,
		limit: s.rec.Limit, claim: c})
	k.byName[s.row.Name] = p
}

// unpack returns the row as it was before it was packed, as if it had been loaded.
func (p *packedRow) unpack(name string) knownRow {
	mem := &struct { // one allocation in place of two
		rec    Record
		claims [1]Claim
	}{claims: [1]Claim{p.claim}}
	c := &mem.claims[0]
	c.ID, c.Token, c.Beat, c.ExpiresAt, c.Since = p.id, p.token, p.beat, p.expiresAt, p.since
	mem.rec = Record{Kind: p.kind, Limit: p.limit, Token: p.lastToken, Claims: mem.claims[:]}
	row := Row{Name: name, Version: p.version, Marked: p.marked}
	return knownRow{snapshot: snapshot{row: row, rec: &mem.rec}, seenAt: p.seenAt}
}

// trimRows is called when a row may have been added. It forgets rows that were not seen for long, and any one if there
// are too many: the one that was not seen for longest would be the next that is renewed. To look at all of them takes
// some milliseconds, so it does so now and then.
func (k *packedRows) trimRows(now driver.Instant) {
	if len(k.byName) > maxOwnRows {
		for name := range k.byName {
			delete(k.byName, name)
			break
		}
	}
	if now.Since(k.trimmed) < usedRowKeep/4 {
		return
	}
	k.trimmed = now
	for name, p := range k.byName {
		if now.Since(p.seenAt) > usedRowKeep {
			delete(k.byName, name)
		}
	}
}
