package record

import (
	"cmp"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
)

// maxEndedNotes is how many notes of ended claims a record keeps: as many as there may be waiters, so that an operator
// can break all waiters at once and each of them still learns of it.
const maxEndedNotes = driver.MaxWaiters

// maxRunNotes is the same for a key of a ledger, which has one claim at a time.
const maxRunNotes = 4

// addNote leaves a note that somebody other than its owner has ended the claim.
//
// The note is kept for the claim's TTL, because a renewal may ask until then, and for the time during which a release
// keeps asking an unreachable store. If there are too many notes, the one that expires first is dropped, and
// NotesDroppedUntil remembers that a note may be missing, so that nobody takes a missing note for proof.
func (r *Record) addNote(c *Claim, cause driver.LossCause, in StepInput) {
	until := max(in.Latest, in.Now) + (c.TTL + driver.UnreachableTimeout(c.TTL)).Microseconds()
	r.Ended = append(slices.Clone(r.Ended), EndedClaim{ID: c.ID, Cause: cause, Until: until, Reason: c.BreakReason})
	most := maxEndedNotes
	if r.Runs != nil {
		most = maxRunNotes
	}
	for len(r.Ended) > most {
		soonest := slices.MinFunc(r.Ended, func(a, b EndedClaim) int { return cmp.Compare(a.Until, b.Until) })
		r.NotesDroppedUntil = max(r.NotesDroppedUntil, soonest.Until)
		r.dropNote(soonest.ID)
	}
}

// dropNote removes the note of one claim.
func (r *Record) dropNote(id string) {
	r.dropNotesIf(func(n EndedClaim) bool { return n.ID == id })
}

// dropNotesIf copies the notes before it changes them: a clone of a record shares them with the original.
func (r *Record) dropNotesIf(drop func(EndedClaim) bool) {
	if slices.ContainsFunc(r.Ended, drop) {
		r.Ended = slices.DeleteFunc(slices.Clone(r.Ended), drop)
	}
}

// dropOldNotes removes the notes that no owner can ask for any more. Where the store's clock is not known, nobody can
// tell which these are. So there the last maxEndedNotes stay, and after one was dropped because there were too many, a
// missing note proves nothing for as long as the record exists.
func (r *Record) dropOldNotes(in StepInput) {
	r.dropNotesIf(func(n EndedClaim) bool { return in.hasPassed(n.Until) })
	if in.hasPassed(r.NotesDroppedUntil) {
		r.NotesDroppedUntil = 0
	}
}

// notedReason returns what the operator said who broke a claim, or "".
func (r *Record) notedReason(id string) string {
	for _, n := range r.Ended {
		if n.ID == id {
			return n.Reason
		}
	}
	return ""
}

func (r *Record) hasReasons() bool {
	return slices.ContainsFunc(r.Ended, func(n EndedClaim) bool { return n.Reason != "" }) ||
		slices.ContainsFunc(r.Claims, func(c Claim) bool { return c.BreakReason != "" })
}

// dropReasons forgets what operators have said.
func (r *Record) dropReasons() {
	r.Ended = slices.Clone(r.Ended)
	for i := range r.Ended {
		r.Ended[i].Reason = ""
	}
	for i := range r.Claims {
		r.Claims[i].BreakReason = ""
	}
}

// notedCause returns why somebody else has ended the claim, or "" if there is no note of it.
func (r *Record) notedCause(id string) driver.LossCause {
	for _, n := range r.Ended {
		if n.ID == id {
			return n.Cause
		}
	}
	return ""
}
