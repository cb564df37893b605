package redis

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// The replies of the scripts. The header of each script names its replies too. Each client sends its own scripts, so
// only this package reads the replies, and they may change between versions. What the scripts store may not: clients of
// different versions share it.

// The first element of a reply to acquire.lua, acquire_queued.lua and set_weight.lua. A new grant is a bare number, its
// token.
const (
	replyHeld       = 0 // the lock is held, or the weight does not fit
	replyGranted    = 1 // an earlier request was granted, or the claim has permits with numbers
	replyBroken     = 2 // an operator has broken the claim
	replyWaiting    = 3 // it waits in the queue
	replyMismatch   = 4 // the lock has another kind or limit
	replyFull       = 5 // too many hold it or wait
	replyUseQueue   = 6 // claims wait, or hold it in another way: acquire_queued.lua or release_queued.lua must decide
	replyTombstoned = 7 // the claim was released before this request arrived
	replySuperseded = 8 // the claim is newest-only, and so is one that has begun to wait behind it
)

// The replies that the scripts of release, break and detach share. Releases reply with replyBroken and replyUseQueue,
// too.
const (
	replyNotFound    = 0 // there is no such claim
	replyDone        = 1
	replyMaybeBroken = 8 // release: there is no such claim, and whether it was broken is not known any more
)

// The replies of renew.lua and renew_shared.lua. A detached claim's is renewDetached plus its TTL in ms.
const (
	renewGone             = 0
	renewDone             = 1
	renewReleaseRequested = 3
	renewTaken            = -1
	renewBroken           = -2 // an operator has ended the claim
	renewMarked           = -3 // an operator has broken the claim gracefully: it still holds the lock
	renewDetached         = 1_000_000_000
)

// Further replies of break.lua.
const (
	breakForeign = -1 // a foreign holder cannot be asked or broken gracefully
	breakNoLock  = -2 // what is under the key is no lock that a client makes
)

// Further replies of detach.lua. The claim is gone where it replies replyNotFound.
const (
	detachTaken  = -1
	detachBroken = -2
)

// Further replies of set_weight.lua.
const (
	weightDone   = 1
	weightGone   = 10
	weightTaken  = 11
	weightBroken = 12
	weightLate   = 13 // a later change came before this one
)

// Further replies of agree_token.lua.
const (
	tokenTaken    = 1
	tokenTooSmall = 2
)

// detachedRenewal returns the TTL of a detached claim from the reply to its renewal, and false if the claim is not
// detached. The reply is a TTL and a large constant, so that a renewal stays a single number.
func detachedRenewal(reply int64) (ttl time.Duration, detached bool) {
	if reply < renewDetached {
		return 0, false
	}
	return millis(reply - renewDetached), true
}

// The flags of a claim, one letter each, as the scripts store them. Redlock adds "s": see agreedFlag.
const (
	flagReleaseRequested = "a"
	flagBroken           = "b"
	flagPromoted         = "c"
	flagDetached         = "d"
	flagForeign          = "f"
)

// corruptReply is the error for a reply that no script of this version sends.
func corruptReply(name string) error {
	return fmt.Errorf("%w: a script's reply about %q is malformed; is another version of Holdfast in use?",
		driver.ErrCorrupt, name)
}

// readArray returns the elements of a reply. It reports false if there are fewer than min.
func readArray(m rueidis.RedisMessage, min int) ([]rueidis.RedisMessage, bool) {
	a, err := m.ToArray()
	return a, err == nil && len(a) >= min
}

// readString returns a reply as text, which is empty for nil. Scripts reply with numbers or with text of numbers.
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

// readNumber returns a reply as a number, which is 0 for nil and for text that is no number.
func readNumber(m rueidis.RedisMessage) int64 {
	if m.IsInt64() {
		n, _ := m.AsInt64()
		return n
	}
	n, _ := strconv.ParseInt(readString(m), 10, 64)
	return n
}

// millis returns a duration that a script counts in milliseconds.
func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// micros returns the server's time that a script stored. It is zero where none is known.
func micros(us int64) time.Time {
	if us <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// readHolders reads the holders that a refusal names. It skips those that it cannot read: they are shown to the user
// and decide nothing.
func readHolders(answers []rueidis.RedisMessage) (hs []driver.ClaimInfo) {
	for _, m := range answers {
		a, ok := readArray(m, 9)
		if !ok {
			continue
		}
		h := newClaimInfo(readString(a[0]), readString(a[6]))
		h.Token, h.Owner, h.Meta, h.TTL, h.Since, h.Weight = readNumber(a[1]), readString(a[2]), readString(a[3]), millis(readNumber(a[4])), micros(readNumber(a[5])), readNumber(a[7])
		// A lock without an expiry has a PTTL of less than 0: it has no known end.
		h.Remaining = millis(max(readNumber(a[8]), 0))
		if h.Foreign {
			h.Ref, h.Owner = foreignPrefix+h.Ref, foreignOwner(h.Owner, h.Ref)
		}
		hs = append(hs, h)
	}
	return hs
}

// foreignPrefix begins the ref of a foreign holder. The digest of the key's content follows, so that a break by this
// ref removes exactly what was shown.
const foreignPrefix = "f."

// foreignOwner describes a foreign holder. It does not show the value: everybody who knows it can release the lock, and
// under a mistyped name it may be anything.
func foreignOwner(keyType, digest string) string {
	if keyType != "string" && keyType != "hash" {
		return "no client: a " + keyType + " is stored under the key, which is no lock"
	}
	return "a foreign client (" + keyType + " " + digest[:min(len(digest), 8)] + ")"
}

// newClaimInfo describes a claim by its ref and flags.
func newClaimInfo(ref, flags string) driver.ClaimInfo {
	return driver.ClaimInfo{
		Ref: ref, ReleaseRequested: strings.Contains(flags, flagReleaseRequested), Broken: strings.Contains(flags,
			flagBroken),
		Detached: strings.Contains(flags, flagDetached), Foreign: strings.Contains(flags, flagForeign),
	}
}

// sharedSuffix ends the ref of a claim on a read-write lock or a semaphore. Another script renews such a claim, and a
// grant that is made from a handle has only its ref to tell. The ref of a mutex's claim is its id alone.
const sharedSuffix = ".s"

// refOf returns the ref of a claim.
func refOf(id string, kind driver.Kind) string {
	if kind == driver.KindMutex || kind == "" || id == "" {
		return id
	}
	return id + sharedSuffix
}

// idOf returns the claim id of a ref.
func idOf(ref string) string { return strings.TrimSuffix(ref, sharedSuffix) }
