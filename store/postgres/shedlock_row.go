package postgres

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

// signaturePrefix is what the signatures of a claim begin with: 35 characters, which the statements
// compare.
func signaturePrefix(id string) string { return "holdfast/" + id }

// makeSignature returns what locked_by has before the note, and after it. An owner that does not fit is cut.
func (s *shedlockStore) makeSignature(c driver.Claim) (head, rest string) {
	detached := "-"
	if c.Detached {
		detached = "d"
	}
	owner := c.Owner
	for len(owner) > s.signatureRoom-len(c.Meta) {
		_, n := utf8.DecodeLastRuneInString(owner)
		owner = owner[:len(owner)-n]
	}
	head = fmt.Sprintf("%s/-%s-/%d/%d", signaturePrefix(c.ID), detached, c.TTL.Milliseconds(), len(owner))
	return head, " " + owner + c.Meta
}

var signaturePattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?s)^holdfast/([a-z0-9]{26})/(.)(.)(.)/(\d+)/(\d+)(?:/(.)([a-z0-9]{26}))? (.*)$`)
})

// shedlockRow is a row as a statement has seen it. The zero value means that there is none.
type shedlockRow struct {
	name      string
	lockedAt  int64 // in microseconds
	remaining time.Duration
	lockedBy  string
	claim     driver.ClaimInfo
	claimID   string // of our holder; empty for a foreign one
	stateFlag string // of our holder: how it ended, or whether it is broken
	timeFault string // why the row's times cannot be right; empty if they can
	// The previous holder, if it was one of ours, and how it ended.
	formerID, formerFlag string
}

// parseRow reads the columns of shedColumns.
func (s *shedlockStore) parseRow(row [][]byte) (v shedlockRow) {
	if row[1] == nil {
		return v
	}
	v.name, v.lockedAt, v.lockedBy = string(row[4]), readMicros(row[1]), string(row[3])
	now, end := readMicros(row[0]), readMicros(row[2])
	v.remaining = timeUntil(now, end)
	v.claim = driver.ClaimInfo{Ref: foreignRefPrefix + formatTimestamp(v.lockedAt), Owner: v.lockedBy, Weight: 1,
		Since: time.UnixMicro(v.lockedAt), Remaining: v.remaining, Foreign: true}
	if m := signaturePattern().FindStringSubmatch(v.lockedBy); m != nil {
		ms, _ := strconv.ParseInt(m[5], 10, 64)
		length, _ := strconv.Atoi(m[6])
		length = min(length, len(m[9]))
		v.claimID, v.stateFlag, v.formerFlag, v.formerID = m[1], m[2], m[7], m[8]
		v.claim = driver.ClaimInfo{Ref: m[1], Owner: m[9][:length], Meta: m[9][length:], Weight: 1,
			Token: v.lockedAt, TTL: time.Duration(ms) * time.Millisecond, Since: time.UnixMicro(v.lockedAt),
			Remaining: v.remaining, Broken: m[2] == flagBroken, Detached: m[3] == "d", ReleaseRequested: m[4] == "a"}
	}
	v.timeFault = v.findTimeFault(now, end)
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
func (v shedlockRow) findTimeFault(now, end int64) string {
	zone := func(d time.Duration) bool { return d > minZoneOffset && d < maxZoneOffset+minZoneOffset }
	switch ahead, back := timeUntil(now, v.lockedAt), timeUntil(end, v.lockedAt); {
	case zone(ahead):
		return fmt.Sprintf("locked_at is %v ahead of the server's clock", ahead.Round(time.Minute))
	case v.stateFlag == flagReleased, v.stateFlag == flagForced, timeUntil(v.lockedAt, now) > 24*time.Hour:
	case zone(back):
		return fmt.Sprintf("lock_until is %v before locked_at", back.Round(time.Minute))
	}
	return ""
}

// describeTimeFault explains the fault to users.
func (v shedlockRow) describeTimeFault() string {
	return fmt.Sprintf("the row of %q is odd: %s; if the server's clock was not set back, a ShedLock client "+
		"writes local time in place of UTC, and does not exclude the clients that write UTC: "+
		"have all of them use usingDbTime()", v.name, v.timeFault)
}

// foreignRefPrefix starts the ref of a foreign holder. Its locked_at follows.
const foreignRefPrefix = "at/"

// formatTimestamp writes a time in the form that PostgreSQL reads under any DateStyle.
func formatTimestamp(micros int64) string {
	if micros == math.MaxInt64 {
		return "infinity"
	}
	return time.UnixMicro(micros).UTC().Format(timestampForm)
}

const timestampForm = "2006-01-02 15:04:05.999999"

// isTimestamp reports whether a text can have been made by formatTimestamp. The text comes from an
// operator's ref, and must not make a statement fail.
func isTimestamp(text string) bool {
	_, err := time.Parse(timestampForm, text)
	return err == nil || text == formatTimestamp(math.MaxInt64)
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

// heldError is the error for a claim that is refused. It names the holder, if there is one, and the row's
// fault, if there is one.
func (v shedlockRow) heldError() error {
	switch {
	case v.remaining <= 0:
		return &driver.HeldError{}
	case v.timeFault != "":
		return fmt.Errorf("%w: %s", &driver.HeldError{Holders: []driver.ClaimInfo{v.claim}}, v.describeTimeFault())
	}
	return &driver.HeldError{Holders: []driver.ClaimInfo{v.claim}}
}

// toLock shows the row as a lock.
func (v shedlockRow) toLock(name string) driver.Lock {
	l := driver.Lock{Name: name, Token: v.lockedAt, Revision: "free"}
	if v.remaining > 0 {
		l.Kind, l.Limit, l.Holders = driver.KindMutex, 1, []driver.ClaimInfo{v.claim}
		l.Revision = strconv.FormatInt(v.lockedAt, 10) + v.lockedBy
	}
	return l
}

// flagOf returns the last flag of a claim that does not hold the lock, if the row still has it.
func (v shedlockRow) flagOf(id string) (how string, known bool) {
	switch id {
	case v.claimID:
		return v.stateFlag, true
	case v.formerID:
		return v.formerFlag, true
	}
	return "", false
}

// releaseOutcome says what became of a claim that its release did not find. If uncertain, an earlier try of
// that release may have ended the claim. Then only the row can tell.
func (v shedlockRow) releaseOutcome(id string, unknown bool) error {
	how, known := v.flagOf(id)
	switch {
	case !unknown:
		return v.lossError(id)
	case !known:
		return driverutil.Uncertain(errors.New("others have had the lock since, and left no trace of how this claim was ended"))
	case how == flagReleased:
		return nil
	case how == flagForced:
		return &driver.LossError{Cause: driver.LossBroken}
	}
	return &driver.LossError{Cause: driver.LossExpired}
}

// lossError says why a claim does not hold the lock, or must not be renewed.
func (v shedlockRow) lossError(id string) *driver.LossError {
	how, _ := v.flagOf(id)
	switch {
	case how == flagForced:
		return &driver.LossError{Cause: driver.LossBroken}
	case v.remaining > 0 && v.claimID != id:
		return &driver.LossError{Cause: driver.LossTaken}
	case v.claimID == id && v.remaining > 0 && v.claim.Broken:
		return &driver.LossError{Cause: driver.LossBroken}
	}
	if v.timeFault != "" {
		return &driver.LossError{Cause: driver.LossGone, Err: errors.New(v.describeTimeFault())}
	}
	return &driver.LossError{Cause: driver.LossGone}
}
