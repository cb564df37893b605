package redis

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// The codes by which scripts answer.
const (
	replyHeld        = 0
	replyGranted     = 1
	replyBroken      = 2
	replyWaiting     = 3
	replyMismatch    = 4
	replyFull        = 5
	replyUseQueue    = 6
	replyTombstoned  = 7
	replyMaybeBroken = 8
)

// The flags of a claim, one letter each, as scripts keep them.
const (
	flagReleaseRequested = "a"
	flagBroken           = "b"
	flagPromoted         = "c"
	flagDetached         = "d"
	flagForeign          = "f"
)

func corruptReply(name string) error {
	return fmt.Errorf("%w: a script's answer about %q makes no sense; is another version of Holdfast in use?", driver.ErrCorrupt, name)
}

func readArray(m rueidis.RedisMessage, least int) ([]rueidis.RedisMessage, bool) {
	a, err := m.ToArray()
	return a, err == nil && len(a) >= least
}

// readString is a reply as text; what is absent is empty.
func readString(m rueidis.RedisMessage) string {
	if m.IsNil() {
		return ""
	}
	if m.IsInt64() {
		n, _ := m.AsInt64()
		return strconv.FormatInt(n, 10)
	}
	s, _ := m.ToString()
	return s
}

// readNumber is a reply as a number; what is absent or none is 0.
func readNumber(m rueidis.RedisMessage) int64 {
	if m.IsInt64() {
		n, _ := m.AsInt64()
		return n
	}
	n, _ := strconv.ParseInt(readString(m), 10, 64)
	return n
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func micros(us int64) time.Time {
	if us <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// readHolders reads what a refusal tells of those who hold the lock.
func readHolders(answers []rueidis.RedisMessage) (hs []driver.ClaimInfo) {
	for _, m := range answers {
		a, ok := readArray(m, 9)
		if !ok {
			continue
		}
		h := newClaimInfo(readString(a[0]), readString(a[6]))
		h.Token, h.Owner, h.Meta, h.TTL, h.Since, h.Weight = readNumber(a[1]), readString(a[2]), readString(a[3]), millis(readNumber(a[4])), micros(readNumber(a[5])), readNumber(a[7])
		h.Remaining = millis(max(readNumber(a[8]), 0))
		if h.Foreign {
			h.Ref, h.Owner = foreignPrefix+h.Ref, foreignOwner(h.Owner, h.Ref)
		}
		hs = append(hs, h)
	}
	return hs
}

// foreignPrefix begins the ref of a foreign holder. What follows is the digest of what stands under the key.
const foreignPrefix = "f."

// foreignOwner is what is shown of a foreign holder. Its value is not: by that its client, and whoever else knows it, releases the
// lock, and on a mistyped name it is whatever somebody keeps there.
func foreignOwner(keyType, digest string) string {
	if keyType != "string" && keyType != "hash" {
		return "a foreign client (a " + keyType + ")"
	}
	return "a foreign client (" + keyType + " " + digest[:min(len(digest), 8)] + ")"
}

// newClaimInfo is a claim of that ref and those flags.
func newClaimInfo(ref, flags string) driver.ClaimInfo {
	return driver.ClaimInfo{
		Ref: ref, ReleaseRequested: strings.Contains(flags, flagReleaseRequested), Broken: strings.Contains(flags, flagBroken),
		Detached: strings.Contains(flags, flagDetached), Foreign: strings.Contains(flags, flagForeign),
	}
}

// The ref of a mutex's claim is its id; that of a claim on a lock of another kind has this suffix, since another script
// renews it. A foreign holder's is "f." and the digest of what stands under the key.
const sharedSuffix = ".s"

func refOf(id string, kind driver.Kind) string {
	if kind == driver.KindMutex || kind == "" || id == "" {
		return id
	}
	return id + sharedSuffix
}

// idOf is the claim id that a ref stands for.
func idOf(ref string) string { return strings.TrimSuffix(ref, sharedSuffix) }
