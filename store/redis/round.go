package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// round is one attempt of a claim to be granted by a majority of a Redlock's servers.
type round struct {
	redlock  *redlockStore
	claim    driver.Claim
	number   string // larger than that of every earlier round of this client
	start    driver.Instant
	replies  int           // servers that have replied
	granted  int           // servers that granted the claim
	tokens   map[int]int64 // by server: the token of its grant
	agreed   map[int64]int // by token: how many servers say that a majority agreed on it in an earlier round
	holders  []driver.ClaimInfo
	refused  int   // servers that another claim holds
	broken   bool  // an operator has broken the claim
	denied   int   // servers that deny access
	denial   error // the error of one of them
	finalErr error // set if a retry cannot help
}

// agreedFlag marks a record whose token a majority has agreed on.
const agreedFlag = "s"

// errNoMajority makes Acquire give back the round and try again.
var errNoMajority = errors.New("no majority of the servers granted the lock")

// acquire asks all servers for the lock, and then has a majority agree on its token. Each server counts the TTL from
// the time that it ran the script, while the client counts it from before it sent the first request, and subtracts a
// margin for the drift of clocks. So the client stops trusting the grant before any server of the majority expires it.
func (b *round) acquire(ctx context.Context) (g driver.Grant, err error) {
	r, c := b.redlock, b.claim
	b.tokens, b.agreed = map[int]int64{}, map[int64]int{}
	lock := r.servers[0].keys.lockKey(c.Name)
	keys := []string{lock, sideKey("", lock)}
	args := tryArgs(&c)
	q := serverScript{plainScripts.acquire, keys, append(args[:], b.number), c.ID}
	if err := r.askServers(ctx, c.TTL, q, b.countReply); err != nil {
		return g, err
	}
	switch {
	case b.broken:
		return g, &driver.LossError{Cause: driver.LossBroken}
	case b.finalErr != nil:
		return g, b.finalErr
	case b.granted < r.majority:
		return g, errNoMajority
	}
	token, err := b.agreeOnToken(ctx, keys)
	if err != nil {
		return g, err
	}
	// The requests may have taken so long that nothing of the TTL is left.
	if left := c.TTL - r.clock.Since(b.start) - drift(c.TTL); left <= 0 {
		return g, fmt.Errorf("a majority granted the lock too late: %w", errNoMajority)
	}
	return driver.Grant{Claim: c, Token: token, Since: b.start, GrantedTTL: c.TTL, Ref: c.ID}, nil
}

// countReply counts a reply to acquire.lua. It returns true when the outcome is certain: a majority granted the claim,
// or so many refused it that no majority can be left and none granted it. If some granted and some refused, it waits
// for the rest, since what was granted must be given back.
func (b *round) countReply(v serverReply) bool {
	if v.err != nil {
		b.countError(v)
		return false
	}
	if v.reply.IsInt64() && readNumber(v.reply) > 0 { // a new grant: the reply is its token
		b.replies++
		return b.countGrant(v.server, readNumber(v.reply))
	}
	a, ok := readArray(v.reply, 1)
	if !ok {
		return false
	}
	code := readNumber(a[0])
	if code == replyGranted && len(a) < 2 {
		return false // malformed
	}
	b.replies++
	switch code {
	case replyGranted: // it was granted by an earlier request
		token := readNumber(a[1])
		if len(a) > 2 && strings.Contains(readString(a[2]), agreedFlag) {
			b.agreed[token]++
		}
		return b.countGrant(v.server, token)
	case replyBroken:
		b.broken = true
	case replyHeld:
		b.refused++
		if hs := readHolders(a[min(4, len(a)):]); len(hs) > 0 && len(b.holders) == 0 {
			b.holders = hs[:1]
		}
	case replyUseQueue:
		b.refused++
		b.holders = append(b.holders, driver.ClaimInfo{Foreign: true, Owner: "a queue on one server", Weight: 1})
	}
	return b.refused > len(b.redlock.servers)-b.redlock.majority && b.granted == 0 && b.replies >= b.redlock.majority
}

// countGrant counts a server that has granted the claim, now or by an earlier request.
func (b *round) countGrant(server int, token int64) (enough bool) {
	b.granted++
	b.tokens[server] = token
	return b.granted >= b.redlock.majority
}

// countError counts a server that denies access. A minority that denies it is treated like servers that are away, so
// that passwords can be changed one server after the other.
func (b *round) countError(v serverReply) {
	f := b.redlock.servers[v.server].finalError(v.err)
	if !errors.Is(f, driver.ErrDenied) {
		return
	}
	b.denial = f
	if b.denied++; b.denied > len(b.redlock.servers)-b.redlock.majority {
		b.finalErr = f
	}
}

// maxTokenRounds is how often a round proposes a token. A proposal fails if a server of the majority has a larger
// token, which its reply names, so that the next proposal is larger than all that were seen.
const maxTokenRounds = 8

// agreeOnToken has a majority store one token. It is larger than every token that the granting majority knew. Any later
// majority shares a server with the one that stored it: that server knows this token, and the later claim gets a larger
// one. The token is sent to all servers, since one of the minority may have granted the lock late.
func (b *round) agreeOnToken(ctx context.Context, keys []string) (int64, error) {
	for token, n := range b.agreed {
		if n >= b.redlock.majority {
			// An earlier request of this claim got this token agreed on. It may be in use, so this grant has it too.
			return token, nil
		}
	}
	var token int64
	for _, t := range b.tokens {
		token = max(token, t)
	}
	for range maxTokenRounds {
		token++
		taken, largest := 0, token
		q := serverScript{script: agreeTokenScript, keys: keys,
			args: []string{b.claim.ID, strconv.FormatInt(token, 10)}}
		err := b.redlock.askServers(ctx, b.claim.TTL, q, func(v serverReply) bool {
			a, ok := readArray(v.reply, 1)
			switch {
			case v.err != nil || !ok:
			case readNumber(a[0]) == tokenTaken:
				taken++
			case readNumber(a[0]) == tokenTooSmall && len(a) > 1:
				largest = max(largest, readNumber(a[1]))
			}
			return taken >= b.redlock.majority
		})
		if err != nil {
			return 0, err
		}
		if taken >= b.redlock.majority {
			return token, nil
		}
		if largest == token {
			break // no server wants a larger one: servers are away, or the claim is gone
		}
		token = largest
	}
	return 0, fmt.Errorf("no majority agreed on a token: %w", errNoMajority)
}

// giveBack releases on all servers what this round may have been granted, even if the reply was lost. Its requests may
// arrive late, when the same claim has succeeded in a later round. So they carry the round's number: a server that has
// granted the claim in a later round ignores them (see release_queued.lua).
func (b *round) giveBack(ctx context.Context) {
	r, c := b.redlock, &b.claim
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverTime(c.TTL))
	defer cancel()
	keys := r.servers[0].keys.allKeys(c.Name)
	args := new(queueArgs).fill(r.servers[0], c.ID, "", "", b.number)
	_, _ = r.countReplies(bounded, c.TTL, serverScript{script: plainScripts.releaseQueued, keys: keys[:], args: args})
}

// endedError is the error of an Acquire whose context has ended. It names the holders that the last round found.
func (b *round) endedError(err error) error {
	if len(b.holders) > 0 {
		return fmt.Errorf("%w: %w; %w", driver.ErrUncertain, err, &driver.HeldError{Holders: b.holders})
	}
	return uncertainError(err)
}
