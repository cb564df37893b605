package dynamodb

import (
	"crypto/rand"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
)

// The attributes of the AWS lock client and of its ports. A holder changes recordVersionNumber whenever it
// renews. To a client that has seen it unchanged for leaseDuration, the holder has expired. isReleased, if it
// exists, says that the lock is free.
const (
	ownerAttribute         = "ownerName"
	leaseAttribute         = "leaseDuration"
	rvnAttribute           = "recordVersionNumber"
	releasedAttribute      = "isReleased"
	metaAttribute          = "data"
	nonAcquirableAttribute = "isNonAcquirable" // of dynamodb-lock-rs: no client may take the lock
	// Ours: the largest token granted, and what an operator asks of the holder.
	tokenAttribute = "holdfast_token"
	markAttribute  = "holdfast_mark"
	// Ours: a list of notes about claims that another client has ended. Each is a cause, the service's time until which
	// it is kept, and the id of the claim. By it the claim's owner can tell that end from its own release.
	endedAttribute = "holdfast_ended"
)

// maxEndNotes is how many notes of ended claims an item keeps.
const maxEndNotes = 16

// A mark is one of these words, a colon, and the id of the claim that it is for.
const (
	markBroken           = "broken"
	markReleaseRequested = "asked"
)

// LeaseFormat is how the lock client writes leaseDuration. Both formats are read.
type LeaseFormat string

// All clients of a table must use the same format: those that write one cannot read the other.
const (
	LeaseFormatMillis   LeaseFormat = "millis"   // "20000", like the AWS client in Java
	LeaseFormatDuration LeaseFormat = "duration" // "20s", like dynamolock in Go
)

// formatLease writes leaseDuration.
func (l LeaseFormat) formatLease(ttl time.Duration) string {
	if l == LeaseFormatDuration {
		return ttl.String()
	}
	return strconv.FormatInt(ttl.Milliseconds(), 10)
}

// versionNumber is a recordVersionNumber of ours. It says whose claim it is, and when that expires by the service's
// clock. So our clients need not watch each other.
type versionNumber struct {
	claimID   string
	token     int64
	expiresAt int64 // in microseconds
}

const versionPrefix = "holdfast."

// claimPrefix is what all recordVersionNumbers of a claim begin with, and grantPrefix those of one grant.
func (r versionNumber) claimPrefix() string { return versionPrefix + r.claimID + "." }
func (r versionNumber) grantPrefix() string {
	return r.claimPrefix() + strconv.FormatInt(r.token, 10) + "."
}

// makeUnique returns a recordVersionNumber that was never used.
func (r versionNumber) makeUnique() string {
	return fmt.Sprintf("%s%d.%s", r.grantPrefix(), r.expiresAt, rand.Text()[:13])
}

// parseVersionNumber reads a recordVersionNumber. It reports false for one that is not ours.
func parseVersionNumber(s string) (r versionNumber, ours bool) {
	s, ours = strings.CutPrefix(s, versionPrefix)
	parts := strings.Split(s, ".")
	if !ours || len(parts) < 4 {
		return r, false
	}
	n := len(parts)
	var terr, eerr error
	r.claimID = strings.Join(parts[:n-3], ".")
	r.token, terr = strconv.ParseInt(parts[n-3], 10, 64)
	r.expiresAt, eerr = strconv.ParseInt(parts[n-2], 10, 64)
	return r, terr == nil && eerr == nil
}

// lockItem is an item in this layout.
type lockItem struct {
	exists, released, isOurs bool
	nonAcquirable            bool // held by an unknown holder, until an operator breaks it
	rvn                      string
	parsedRVN                versionNumber
	owner, meta              string
	mark                     string        // what an operator asks of the holder
	lease                    time.Duration // 0: the holder cannot be watched
	expiresAt                int64         // by the service's clock, in microseconds; 0: not known
	token                    int64         // the largest token granted
	endNotes                 []endNote
}

// endNote says that another client has ended a claim.
type endNote struct {
	claimID string
	cause   driver.LossCause
	until   int64 // by the service's clock, in microseconds
}

// causeOfWord maps the words in notes to causes.
var causeOfWord = map[string]driver.LossCause{"broken": driver.LossBroken, "expired": driver.LossExpired}

// readEndNotes reads the notes of an item. It ignores what it cannot read: an operator may have edited the
// item.
func readEndNotes(it item) (notes []endNote) {
	list, _ := it[endedAttribute].(*types.AttributeValueMemberL)
	if list == nil {
		return nil
	}
	for _, v := range list.Value {
		parts := strings.SplitN(stringOf(v), ":", 3)
		if len(parts) == 3 && causeOfWord[parts[0]] != "" {
			until, _ := strconv.ParseInt(parts[1], 10, 64)
			notes = append(notes, endNote{parts[2], causeOfWord[parts[0]], until})
		}
	}
	return notes
}

// addEndNote returns the list of notes with one more, and without those whose time has passed.
func (l *lockItem) addEndNote(cause string, now int64) types.AttributeValue {
	word := map[driver.LossCause]string{}
	for w, loss := range causeOfWord {
		word[loss] = w
	}
	var list []types.AttributeValue
	for _, e := range l.endNotes {
		if e.until > now {
			list = append(list, textValue(fmt.Sprintf("%s:%d:%s", word[e.cause], e.until, e.claimID)))
		}
	}
	list = list[max(0, len(list)-maxEndNotes+1):]
	until := now + (l.lease + driver.UnreachableTimeout(l.lease)).Microseconds()
	note := fmt.Sprintf("%s:%d:%s", cause, until, l.parsedRVN.claimID)
	return &types.AttributeValueMemberL{Value: append(list, textValue(note))}
}

// causeOfEnd says how another client has ended a claim; empty if there is no note of it.
func (l *lockItem) causeOfEnd(id string) driver.LossCause {
	for _, e := range l.endNotes {
		if e.claimID == id {
			return e.cause
		}
	}
	return ""
}

// readLockItem reads an item of any client. What it cannot read it treats as held: only an operator can
// know better.
func readLockItem(it item) lockItem {
	l := lockItem{exists: len(it) > 0, rvn: stringOf(it[rvnAttribute]), owner: stringOf(it[ownerAttribute])}
	_, l.released = it[releasedAttribute]
	_, l.nonAcquirable = it[nonAcquirableAttribute]
	l.endNotes = readEndNotes(it)
	if token, ok := it[tokenAttribute]; ok {
		var err error
		l.token, err = strconv.ParseInt(numberOf(token), 10, 64)
		l.nonAcquirable = l.nonAcquirable || err != nil // no larger token can be granted
	}
	if note, ok := it[metaAttribute].(*types.AttributeValueMemberB); ok {
		l.meta = string(note.Value)
	}
	if l.parsedRVN, l.isOurs = parseVersionNumber(l.rvn); l.isOurs && l.nonAcquirable && l.released {
		l.isOurs = false // the holder has released the lock
	} else if l.isOurs {
		l.expiresAt = l.parsedRVN.expiresAt
		if mark, id, _ := strings.Cut(stringOf(it[markAttribute]), ":"); id == l.parsedRVN.claimID {
			l.mark = mark
		}
	}
	if l.nonAcquirable || l.rvn == "" { // the holder never expires, or cannot be watched
		l.expiresAt = 0
		return l
	}
	switch s := stringOf(it[leaseAttribute]); {
	case s != "":
		if ms, err := strconv.ParseInt(s, 10, 64); err == nil && ms < math.MaxInt64/int64(time.Millisecond) {
			l.lease = time.Duration(ms) * time.Millisecond
		} else if d, err := time.ParseDuration(s); err == nil {
			l.lease = d
		}
	default: // a number: the lease in seconds, or the second at which it ends
		n, err := strconv.ParseInt(numberOf(it[leaseAttribute]), 10, 64)
		if err == nil && n > 0 && n <= int64(driver.MaxTTL/time.Second) {
			l.lease = time.Duration(n) * time.Second
		} else if err == nil && n > 0 && n < math.MaxInt64/1_000_000-1 {
			l.expiresAt = (n + 1) * 1e6
		}
	}
	return l
}

// isFree reports whether any client may take the lock.
func (l *lockItem) isFree() bool { return !l.exists || l.released && !l.nonAcquirable }

// isHeldBy reports whether this claim holds the lock.
func (l *lockItem) isHeldBy(id string) bool {
	return l.isOurs && l.parsedRVN.claimID == id && !l.isFree()
}

func numberOf(v types.AttributeValue) string {
	if n, ok := v.(*types.AttributeValueMemberN); ok {
		return n.Value
	}
	return ""
}

func numberValue(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}
