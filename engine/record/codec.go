package record

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Format is the version of the encoding that this code writes for the records of a ledger. Those of locks have
// lockFormat, which has not changed. A record of a later version is refused: a program that does not understand a
// record must not decide about its lock.
//
// In format 1, each page of a history has 16 runs. In format 2, it has any number.
const (
	Format     = 2
	lockFormat = 1
)

// recordJSON is a record as a table keeps it: one JSON object, so that an operator can read it with the store's own
// tools.
type recordJSON struct {
	Format            int         `json:"holdfast"`
	Kind              driver.Kind `json:"kind,omitempty"`
	Limit             int64       `json:"limit,omitempty"`
	Token             int64       `json:"token"`
	Idle              int64       `json:"idle,omitempty"`
	Claims            []claimJSON `json:"claims,omitempty"`
	Ended             []endedJSON `json:"ended,omitempty"`
	NotesDroppedUntil int64       `json:"untold_us,omitempty"`
	Runs              *runLogJSON `json:"runs,omitempty"`
	BrokenWaiters     []string    `json:"out,omitempty"` // written before Ended existed: waiters that were broken
}

// endedJSON is an EndedClaim.
type endedJSON struct {
	ID     string `json:"id"`
	Cause  string `json:"why"`
	Until  int64  `json:"until_us"`
	Reason string `json:"reason,omitempty"`
}

// causeWords are the stored words for the causes that a note can have.
var causeWords = map[string]driver.LossCause{
	"broken": driver.LossBroken, "expired": driver.LossExpired, "gone": driver.LossGone,
}

// encodeNotes writes the notes of ended claims. A cause is stored as a word, so that its number in the code may
// change.
func (r *Record) encodeNotes() (notes []endedJSON) {
	for _, n := range r.Ended {
		for word, cause := range causeWords {
			if cause == n.Cause {
				notes = append(notes, endedJSON{ID: n.ID, Cause: word, Until: n.Until, Reason: n.Reason})
			}
		}
	}
	return notes
}

// decodeNotes reads the notes. A cause that only a newer version knows becomes the least specific one. The notes of
// the old form have no time: they are kept for a day from the last grant.
func (w *recordJSON) decodeNotes() (notes []EndedClaim) {
	for _, n := range w.Ended {
		cause := cmp.Or(causeWords[n.Cause], driver.LossGone)
		notes = append(notes, EndedClaim{ID: n.ID, Cause: cause, Until: n.Until, Reason: n.Reason})
	}
	for _, id := range w.BrokenWaiters {
		until := w.Token + driver.MaxTTL.Microseconds()
		notes = append(notes, EndedClaim{ID: id, Cause: driver.LossBroken, Until: until})
	}
	return notes
}

// claimJSON is a Claim. Some keys are other words than the field names: what is stored cannot be renamed.
type claimJSON struct {
	ID               string `json:"id"`
	Session          string `json:"session,omitempty"`
	Owner            string `json:"owner,omitempty"`
	Meta             string `json:"meta,omitempty"`
	Weight           int64  `json:"weight"`
	TTL              int64  `json:"ttl_ms"`
	State            State  `json:"state"`
	Token            int64  `json:"token,omitempty"`
	Beat             int64  `json:"beat"`
	SilenceLimit     int64  `json:"allow_ms"`
	ExpiresAt        int64  `json:"ends_us,omitempty"`
	Since            int64  `json:"since_us,omitempty"`
	ConfirmWindow    int64  `json:"window_ms,omitempty"`
	Detached         bool   `json:"detached,omitempty"`
	ReleaseRequested bool   `json:"asked,omitempty"`
	Broken           bool   `json:"broken,omitempty"`
	BreakReason      string `json:"reason,omitempty"`
	Marked           bool   `json:"marked,omitempty"`
	Permits          string `json:"permits,omitempty"`
}

// encoder is what Encode uses again with the next record.
type encoder struct {
	record recordJSON
	text   bytes.Buffer
	json   *json.Encoder // writes to text
}

var encoders = sync.Pool{New: func() any {
	e := &encoder{}
	e.json = json.NewEncoder(&e.text)
	return e
}}

// Encode returns a record's bytes. It refuses a record that breaks a rule, so that nothing wrong is ever written.
func Encode(r *Record) ([]byte, error) {
	if err := r.Check(); err != nil {
		return nil, fmt.Errorf("%w: refusing to write a broken record: %w", driver.ErrInvalid, err)
	}
	e := encoders.Get().(*encoder)
	defer encoders.Put(e)
	claims := e.record.Claims[:0]
	for i := range r.Claims {
		claims = append(claims, encodeClaim(&r.Claims[i]))
	}
	format := lockFormat
	if r.Runs != nil {
		format = Format
	}
	e.record = recordJSON{
		Format: format, Kind: r.Kind, Limit: r.Limit, Token: r.Token, Idle: r.Idle, Claims: claims,
		Ended: r.encodeNotes(), NotesDroppedUntil: r.NotesDroppedUntil, Runs: encodeRuns(r.Runs),
	}
	e.text.Reset()
	err := e.json.Encode(&e.record)
	clear(claims)
	e.record = recordJSON{Claims: claims}
	if err != nil {
		return nil, err
	}
	data := bytes.Clone(bytes.TrimSuffix(e.text.Bytes(), []byte("\n")))
	if len(data) > MaxData {
		err = r.tooLargeError(len(data))
	}
	return data, err
}

// encodeClaim is the stored form of a claim. Durations are rounded up to milliseconds: a claim must not expire
// earlier for others than its owner believes.
func encodeClaim(c *Claim) claimJSON {
	return claimJSON{
		ID: c.ID, Session: c.Session, Owner: c.Owner, Meta: c.Meta, Weight: c.Weight, TTL: c.TTL.Milliseconds(),
		State: c.State, Token: c.Token, Beat: c.Beat,
		SilenceLimit: ceilMillis(c.SilenceLimit), ExpiresAt: c.ExpiresAt, Since: c.Since,
		ConfirmWindow: ceilMillis(c.ConfirmWindow),
		Detached:      c.Detached, ReleaseRequested: c.ReleaseRequested, Broken: c.Broken, Marked: c.Marked,
		BreakReason: c.BreakReason, Permits: c.Permits,
	}
}

// tooLargeError refuses a record. There may be room on a lock later, when it has fewer claims. A key has one claim, and
// waiting does not help.
func (r *Record) tooLargeError(size int) error {
	if r.Runs != nil {
		return fmt.Errorf("%w: the record of the key would grow to %d bytes, and the store does not keep so many; "+
			"use shorter texts", driver.ErrInvalid, size)
	}
	return fmt.Errorf("%w: its record would grow to %d bytes", driver.ErrQueueFull, size)
}

// claimReserve is by how many bytes an existing claim can grow: it gets a token, its numbers become longer, it is
// marked. A new claim must leave that room for itself and for all others, so that the claims in a full record can
// still be renewed.
const claimReserve = 224

// checkRoom refuses a record whose claims could not grow, or in which the open run could not end with any result.
func (e *engine) checkRoom(r *Record, size int) error {
	full := size + len(r.Claims)*claimReserve + r.permitReserve()
	if len(r.Claims) > 0 {
		full += e.room.result
	}
	if full > e.maxRecord {
		return r.tooLargeError(full)
	}
	return nil
}

// encodeWithRoom encodes a record that has one claim more, for which there must be room. What operators have said goes
// first.
func (e *engine) encodeWithRoom(r *Record) ([]byte, error) {
	data, err := Encode(r)
	if err == nil {
		err = e.checkRoom(r, len(data))
	}
	if err != nil && r.hasReasons() {
		r.dropReasons()
		return e.encodeWithRoom(r)
	}
	return data, err
}

// Decode reads what Encode wrote. If it cannot, it returns ErrCorrupt, with the first bytes; such a record is left as
// it is.
func Decode(name string, data []byte) (*Record, error) {
	var w recordJSON
	if err := json.Unmarshal(data, &w); err != nil {
		return nil, corruptError(name, data, fmt.Errorf("not one JSON object (%v)", err))
	}
	switch {
	case w.Format > Format:
		// Without it, a run that has succeeded would begin again.
		return nil, fmt.Errorf("%w: %q: a newer version of Holdfast wrote it in format %d, and this one knows up to %d: "+
			"upgrade this one, and leave the record as it is", driver.ErrCorrupt, name, w.Format, Format)
	case w.Format < 1:
		return nil, corruptError(name, data, fmt.Errorf("not a Holdfast record"))
	}
	r := &Record{
		Kind: w.Kind, Limit: w.Limit, Token: w.Token, Idle: w.Idle,
		Ended: w.decodeNotes(), NotesDroppedUntil: w.NotesDroppedUntil, Runs: decodeRuns(w.Runs),
	}
	if len(w.Claims) > 0 {
		r.Claims = make([]Claim, 0, len(w.Claims))
	}
	for _, c := range w.Claims {
		r.Claims = append(r.Claims, Claim{
			ID: c.ID, Session: c.Session, Owner: c.Owner, Meta: c.Meta, Weight: c.Weight, TTL: millisToDuration(c.TTL),
			State: c.State, Token: c.Token, Beat: c.Beat,
			SilenceLimit: millisToDuration(c.SilenceLimit), ExpiresAt: c.ExpiresAt, Since: c.Since,
			ConfirmWindow: millisToDuration(c.ConfirmWindow),
			Detached:      c.Detached, ReleaseRequested: c.ReleaseRequested, Broken: c.Broken, Marked: c.Marked,
			BreakReason: c.BreakReason, Permits: c.Permits,
		})
	}
	if err := r.Check(); err != nil {
		return nil, corruptError(name, data, err)
	}
	return r, nil
}

func corruptError(name string, data []byte, why error) error {
	return fmt.Errorf("%w: %q: %w; it begins with %.60q. If nothing uses the lock, remove the record by hand",
		driver.ErrCorrupt, name, why, data)
}

func millisToDuration(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// ceilMillis rounds up, so that no claim expires early.
func ceilMillis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
