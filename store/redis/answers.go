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
	codeHeld     = 0
	codeGranted  = 1
	codeBroken   = 2
	codeWaiting  = 3
	codeMismatch = 4
	codeFull     = 5
	codeAskLine  = 6
	codeBarred   = 7
	codeUnsure   = 8
)

// The flags of a claim, one letter each, as scripts keep them.
const (
	flagAsked    = "a"
	flagBroken   = "b"
	flagCalled   = "c"
	flagDetached = "d"
	flagForeign  = "f"
)

func corruptAnswer(name string) error {
	return fmt.Errorf("%w: a script's answer about %q makes no sense; is another version of Holdfast in use?", driver.ErrCorrupt, name)
}

func array(m rueidis.RedisMessage, least int) ([]rueidis.RedisMessage, bool) {
	a, err := m.ToArray()
	return a, err == nil && len(a) >= least
}

// str is a reply as text; what is absent is empty.
func str(m rueidis.RedisMessage) string {
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

// num is a reply as a number; what is absent or none is 0.
func num(m rueidis.RedisMessage) int64 {
	if m.IsInt64() {
		n, _ := m.AsInt64()
		return n
	}
	n, _ := strconv.ParseInt(str(m), 10, 64)
	return n
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func micros(us int64) time.Time {
	if us <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// holders reads what a refusal tells of those who hold the lock.
func holders(answers []rueidis.RedisMessage) (hs []driver.ClaimInfo) {
	for _, m := range answers {
		a, ok := array(m, 9)
		if !ok {
			continue
		}
		h := standing(str(a[0]), str(a[6]))
		h.Token, h.Owner, h.Meta, h.TTL, h.Since, h.Weight = num(a[1]), str(a[2]), str(a[3]), millis(num(a[4])), micros(num(a[5])), num(a[7])
		h.Remaining = millis(max(num(a[8]), 0))
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

// standing is a claim of that ref and those flags.
func standing(ref, flags string) driver.ClaimInfo {
	return driver.ClaimInfo{
		Ref: ref, ReleaseRequested: strings.Contains(flags, flagAsked), Broken: strings.Contains(flags, flagBroken),
		Detached: strings.Contains(flags, flagDetached), Foreign: strings.Contains(flags, flagForeign),
	}
}

// The ref of a mutex's claim is its id; that of a claim on a lock of another kind has this suffix, since another script
// renews it. A foreign holder's is "f." and the digest of what stands under the key.
const sharedRef = ".s"

func refOf(id string, kind driver.Kind) string {
	if kind == driver.KindMutex || kind == "" || id == "" {
		return id
	}
	return id + sharedRef
}

// idOf is the claim id that a ref stands for.
func idOf(ref string) string { return strings.TrimSuffix(ref, sharedRef) }
