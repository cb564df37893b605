// Package shedlock is the lock algorithm for ShedLock's own table, which it shares with ShedLock's clients: how our
// holders sign a row, what a row says, and what follows from it. The stores on databases have the statements: see
// [Table].
//
// A row is held until its lock_until, by the server's clock in UTC. Our holders write a signature into locked_by:
//
//	holdfast/ID/FLAGS/TTL/LENGTH/NOTE OWNER META
//
// ID is the claim's id, of 26 characters. FLAGS are characters 37 (how the claim ended, or that it is broken), 38 (d:
// detached) and 39 (a: its release was requested). TTL is in milliseconds, LENGTH is the owner's, in bytes. NOTE
// is there if the row's previous holder was one of ours: how it ended, one character, and its id. No other client
// writes such a text, so no client releases or extends a lock that it does not hold. A holder's token is locked_at in
// microseconds, which every grant of ours raises.
//
// ShedLock's own clients write the name of their host into locked_by, so two holders on one host look the same. A
// signature that names the claim is what makes a late release or renewal of ours harmless.
package shedlock

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// The first flag of a signature. A holder that has none of them when its time has passed has expired.
const (
	FlagBroken   = "b" // an operator broke the claim gracefully: it may not be renewed
	FlagForced   = "f" // an operator ended the claim by force
	FlagReleased = "r" // the holder released the lock
)

// flagRequested is the last flag: an operator has asked the holder to release the lock.
const flagRequested = "a"

// Where in a signature an operator sets the first and the last flag, counted from 1.
const statePosition, requestPosition = 37, 39

// SignaturePrefix is what the signatures of a claim begin with: 35 characters, which the statements compare.
func SignaturePrefix(id string) string { return "holdfast/" + id }

// SignatureRoom is how many bytes the owner and the metadata may have in a signature, in a column locked_by of so many
// characters. It is negative if no signature fits.
func SignatureRoom(columnSize int) int {
	return columnSize - len(SignaturePrefix("")) - 26 - len("/---/86400000/256 ") - len("/-") - 26
}

// Signature is what a claim writes into locked_by, without the note.
type Signature struct {
	Prefix string // see SignaturePrefix
	Head   string // what comes before the note; it begins with Prefix
	Rest   string // what comes after the note
}

// makeSignature makes a claim's signature. An owner that does not fit is cut. room is what [SignatureRoom] returned.
func makeSignature(c driver.Claim, room int) Signature {
	detached := "-"
	if c.Detached {
		detached = "d"
	}
	owner := c.Owner
	for len(owner) > room-len(c.Meta) {
		_, n := utf8.DecodeLastRuneInString(owner)
		owner = owner[:len(owner)-n]
	}
	prefix := SignaturePrefix(c.ID)
	head := fmt.Sprintf("%s/-%s-/%d/%d", prefix, detached, c.TTL.Milliseconds(), len(owner))
	return Signature{Prefix: prefix, Head: head, Rest: " " + owner + c.Meta}
}

var signaturePattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?s)^holdfast/([a-z0-9]{26})/(.)(.)(.)/(\d+)/(\d+)(?:/(.)([a-z0-9]{26}))? (.*)$`)
})

// Row is a row as a statement has seen it. The zero value means that there is none.
type Row struct {
	Name      string
	LockedAt  int64         // in microseconds
	Remaining time.Duration // 0 if the row is not held
	LockedBy  string
	Claim     driver.ClaimInfo
	ClaimID   string // of our holder; empty for a foreign one
	TimeFault string // why the row's times cannot be right; empty if they can

	stateFlag string // of our holder: how it ended, or whether it is broken
	// The previous holder, if it was one of ours, and how it ended.
	formerID, formerFlag string
}

// ParseRow reads the columns of a row. now is the server's clock; all times are in microseconds since 1970, in UTC.
func ParseRow(name, lockedBy string, now, lockedAt, lockUntil int64) Row {
	v := Row{Name: name, LockedAt: lockedAt, LockedBy: lockedBy, Remaining: timeUntil(now, lockUntil)}
	v.Claim = driver.ClaimInfo{Ref: ForeignRefPrefix + FormatTimestamp(lockedAt), Owner: lockedBy, Weight: 1,
		Since: time.UnixMicro(lockedAt), Remaining: v.Remaining, Foreign: true}
	if m := signaturePattern().FindStringSubmatch(lockedBy); m != nil {
		ms, _ := strconv.ParseInt(m[5], 10, 64)
		length, _ := strconv.Atoi(m[6])
		length = min(length, len(m[9]))
		v.ClaimID, v.stateFlag, v.formerFlag, v.formerID = m[1], m[2], m[7], m[8]
		v.Claim = driver.ClaimInfo{Ref: m[1], Owner: m[9][:length], Meta: m[9][length:], Weight: 1,
			Token: lockedAt, TTL: time.Duration(ms) * time.Millisecond, Since: time.UnixMicro(lockedAt),
			Remaining: v.Remaining, Broken: m[2] == FlagBroken, Detached: m[3] == "d", ReleaseRequested: m[4] == flagRequested}
	}
	v.TimeFault = v.findTimeFault(now, lockUntil)
	return v
}

// Times that are wrong by a time zone are told from clocks that are not set exactly: ShedLock clients that do
// not use the database's time are hardly further apart than minZoneOffset.
const (
	minZoneOffset = 10 * time.Minute
	maxZoneOffset = 14 * time.Hour
)

// findTimeFault says how a row shows that a client writes local time where UTC belongs, so that it and the
// other clients do not exclude each other: locked_at is in the future, or lock_until is long before
// locked_at. A client whose time zone is behind UTC leaves no such trace, unless it ends a lock that another
// client holds. Rows that our own clients have released are right: they write the server's time.
func (v Row) findTimeFault(now, end int64) string {
	zone := func(d time.Duration) bool { return d > minZoneOffset && d < maxZoneOffset+minZoneOffset }
	switch ahead, back := timeUntil(now, v.LockedAt), timeUntil(end, v.LockedAt); {
	case zone(ahead):
		return fmt.Sprintf("locked_at is %v ahead of the server's clock", ahead.Round(time.Minute))
	case v.stateFlag == FlagReleased, v.stateFlag == FlagForced, timeUntil(v.LockedAt, now) > 24*time.Hour:
	case zone(back):
		return fmt.Sprintf("lock_until is %v before locked_at", back.Round(time.Minute))
	}
	return ""
}

// describeTimeFault explains TimeFault to users.
func (v Row) describeTimeFault() string {
	return fmt.Sprintf("the row of %q is odd: %s; if the server's clock was not set back, a ShedLock client "+
		"writes local time in place of UTC, and does not exclude the clients that write UTC: "+
		"have all of them use usingDbTime()", v.Name, v.TimeFault)
}

// maxOddRows is how many rows with times that cannot be right are shown.
const maxOddRows = 8

// ListTimeFaults makes a finding of each row whose times cannot be right.
func ListTimeFaults(rows []Row, f driver.Finding) (all []driver.Finding) {
	for _, v := range rows {
		if v.TimeFault != "" && len(all) < maxOddRows {
			all = append(all, f.With("", v.describeTimeFault()))
		}
	}
	return all
}

// ForeignRefPrefix starts the ref of a foreign holder. Its locked_at follows.
const ForeignRefPrefix = "at/"

// FormatTimestamp writes a time, in microseconds, in the form that the databases read under any setting. The largest
// time is PostgreSQL's infinity.
func FormatTimestamp(micros int64) string {
	if micros == math.MaxInt64 {
		return "infinity"
	}
	return time.UnixMicro(micros).UTC().Format(timestampForm)
}

const timestampForm = "2006-01-02 15:04:05.999999"

// isTimestamp reports whether a text can have been made by [FormatTimestamp]. The text comes from an
// operator's ref, and must not make a statement fail.
func isTimestamp(text string) bool {
	_, err := time.Parse(timestampForm, text)
	return err == nil || text == FormatTimestamp(math.MaxInt64)
}

// maxRemaining replaces a time that no Duration can express.
const maxRemaining = 100 * 365 * 24 * time.Hour

// timeUntil is the time from now to end, or 0 if end has passed. An operator may have set any end.
func timeUntil(now, end int64) time.Duration {
	if end <= now {
		return 0
	}
	return time.Duration(min(end-now, maxRemaining.Microseconds())) * time.Microsecond
}

// HeldError is the error for a claim that is refused. It names the holder, if there is one, and the row's
// fault, if there is one.
func (v Row) HeldError() error {
	switch {
	case v.Remaining <= 0:
		return &driver.HeldError{}
	case v.TimeFault != "":
		return fmt.Errorf("%w: %s", &driver.HeldError{Holders: []driver.ClaimInfo{v.Claim}}, v.describeTimeFault())
	}
	return &driver.HeldError{Holders: []driver.ClaimInfo{v.Claim}}
}

// ToLock shows the row as a lock.
func (v Row) ToLock(name string) driver.Lock {
	l := driver.Lock{Name: name, Token: v.LockedAt, Revision: "free"}
	if v.Remaining > 0 {
		l.Kind, l.Limit, l.Holders = driver.KindMutex, 1, []driver.ClaimInfo{v.Claim}
		l.Revision = strconv.FormatInt(v.LockedAt, 10) + v.LockedBy
	}
	return l
}

// flagOf returns the last flag of a claim that does not hold the lock, if the row still has it.
func (v Row) flagOf(id string) (how string, known bool) {
	switch id {
	case v.ClaimID:
		return v.stateFlag, true
	case v.formerID:
		return v.formerFlag, true
	}
	return "", false
}

// ReleaseOutcome says what became of a claim that its release did not find. If uncertain, an earlier try of
// that release may have ended the claim. Then only the row can tell.
func (v Row) ReleaseOutcome(id string, uncertain bool) error {
	how, known := v.flagOf(id)
	switch {
	case !uncertain:
		return v.LossError(id)
	case !known:
		return driverutil.Uncertain(errors.New("others have had the lock since, and left no trace of how this claim was ended"))
	case how == FlagReleased:
		return nil
	case how == FlagForced:
		return &driver.LossError{Cause: driver.LossBroken}
	}
	return &driver.LossError{Cause: driver.LossExpired}
}

// LossError says why a claim does not hold the lock, or must not be renewed.
func (v Row) LossError(id string) *driver.LossError {
	how, _ := v.flagOf(id)
	switch {
	case how == FlagForced:
		return &driver.LossError{Cause: driver.LossBroken}
	case v.Remaining > 0 && v.ClaimID != id:
		return &driver.LossError{Cause: driver.LossTaken}
	case v.ClaimID == id && v.Remaining > 0 && v.Claim.Broken:
		return &driver.LossError{Cause: driver.LossBroken, StaysHeld: true}
	}
	if v.TimeFault != "" {
		return &driver.LossError{Cause: driver.LossGone, Err: errors.New(v.describeTimeFault())}
	}
	return &driver.LossError{Cause: driver.LossGone}
}
