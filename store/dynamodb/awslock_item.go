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

// The attributes of the AWS lock client, and of its ports. A holder changes recordVersionNumber with every sign of life, and is
// over for those who have seen it unchanged for leaseDuration. isReleased, if it is there, says that nobody holds the lock.
const (
	ownerAttribute         = "ownerName"
	leaseAttribute         = "leaseDuration"
	rvnAttribute           = "recordVersionNumber"
	releasedAttribute      = "isReleased"
	metaAttribute          = "data"
	nonAcquirableAttribute = "isNonAcquirable" // of dynamodb-lock-rs: nobody may take it
	// Ours: the largest token granted, and what an operator wants of a holder.
	tokenAttribute = "holdfast_token"
	markAttribute  = "holdfast_mark"
	// A list of notes, each the cause, up to when it is kept by the service's clock, and the id of a claim that somebody else has
	// ended: so its owner can tell that from its own release.
	endedAttribute = "holdfast_ended"
)

// maxEndNotes is how many notes of ended claims an item has.
const maxEndNotes = 16

// The marks that an operator leaves stand before a colon and the id of the claim that they are for.
const (
	markBroken           = "broken"
	markReleaseRequested = "asked"
)

// LeaseFormat is how the text in leaseDuration is written. All are read.
type LeaseFormat string

// The ways to write a lease. Clients of the first kind fail on the second, and the other way round: those of one table must
// agree.
const (
	LeaseFormatMillis   LeaseFormat = "millis"   // "20000", as the AWS client in Java has it
	LeaseFormatDuration LeaseFormat = "duration" // "20s", as dynamolock in Go has it
)

func (l LeaseFormat) formatLease(ttl time.Duration) string {
	if l == LeaseFormatDuration {
		return ttl.String()
	}
	return strconv.FormatInt(ttl.Milliseconds(), 10)
}

// versionNumber is a recordVersionNumber of ours. It tells those of us who read it whose claim it is, and up to when it stands by the
// service's clock, so that we need not watch each other.
type versionNumber struct {
	claimID   string
	token     int64
	expiresAt int64 // microseconds
}

const versionPrefix = "holdfast."

// claimPrefix starts all recordVersionNumbers of a claim, and grant those of its grant.
func (r versionNumber) claimPrefix() string { return versionPrefix + r.claimID + "." }
func (r versionNumber) grantPrefix() string {
	return r.claimPrefix() + strconv.FormatInt(r.token, 10) + "."
}

// makeUnique gives one that was never used.
func (r versionNumber) makeUnique() string {
	return fmt.Sprintf("%s%d.%s", r.grantPrefix(), r.expiresAt, rand.Text()[:13])
}

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

// lockItem is an item of this layout.
type lockItem struct {
	exists, released, isOurs bool
	nonAcquirable            bool // held by nobody we know, until an operator breaks it
	rvn                      string
	parsedRVN                versionNumber
	owner, meta              string
	mark                     string        // what an operator wants of this claim
	lease                    time.Duration // 0: it has no end that can be watched for
	expiresAt                int64         // by the service's clock, in microseconds; 0: not known
	token                    int64         // the largest that was granted
	endNotes                 []endNote
}

// endNote is a note of a claim that somebody else has ended.
type endNote struct {
	claimID string
	cause   driver.LossCause
	until   int64 // by the service's clock, in microseconds
}

// causeOfWord are the words for them in an item.
var causeOfWord = map[string]driver.LossCause{"broken": driver.LossBroken, "expired": driver.LossExpired}

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

// addEndNote is the list with one more note, and without those that nobody asks for any more.
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
	return &types.AttributeValueMemberL{Value: append(list, textValue(fmt.Sprintf("%s:%d:%s", cause, until, l.parsedRVN.claimID)))}
}

// causeOfEnd tells how a claim was ended by somebody else; empty if there is no note of it.
func (l *lockItem) causeOfEnd(id string) driver.LossCause {
	for _, e := range l.endNotes {
		if e.claimID == id {
			return e.cause
		}
	}
	return ""
}

func readLockItem(it item) lockItem {
	l := lockItem{exists: len(it) > 0, rvn: stringOf(it[rvnAttribute]), owner: stringOf(it[ownerAttribute])}
	_, l.released = it[releasedAttribute]
	_, l.nonAcquirable = it[nonAcquirableAttribute]
	l.endNotes = readEndNotes(it)
	if token, ok := it[tokenAttribute]; ok {
		var err error
		l.token, err = strconv.ParseInt(numberOf(token), 10, 64)
		l.nonAcquirable = l.nonAcquirable || err != nil // no token would be larger than what stands there
	}
	if note, ok := it[metaAttribute].(*types.AttributeValueMemberB); ok {
		l.meta = string(note.Value)
	}
	if l.parsedRVN, l.isOurs = parseVersionNumber(l.rvn); l.isOurs && l.nonAcquirable && l.released {
		l.isOurs = false // who held it has gone
	} else if l.isOurs {
		l.expiresAt = l.parsedRVN.expiresAt
		if mark, id, _ := strings.Cut(stringOf(it[markAttribute]), ":"); id == l.parsedRVN.claimID {
			l.mark = mark
		}
	}
	if l.nonAcquirable || l.rvn == "" { // it has no end, or none that could be watched for
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
	default: // a number: seconds, or the second at which it ends
		if n, err := strconv.ParseInt(numberOf(it[leaseAttribute]), 10, 64); err == nil && n > 0 && n <= int64(driver.MaxTTL/time.Second) {
			l.lease = time.Duration(n) * time.Second
		} else if err == nil && n > 0 && n < math.MaxInt64/1_000_000-1 {
			l.expiresAt = (n + 1) * 1e6
		}
	}
	return l
}

// isFree reports whether anybody may take the lock as it stands.
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
