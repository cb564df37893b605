package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
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
func (rd *round) acquire(ctx context.Context) (g driver.Grant, err error) {
	r, c := rd.redlock, rd.claim
	rd.tokens, rd.agreed = map[int]int64{}, map[int64]int{}
	lock := r.servers[0].keys.lockKey(c.Name)
	keys := []string{lock, sideKey("", lock)}
	args := tryArgs(&c)
	q := serverScript{plainScripts.acquire, keys, append(args[:], rd.number), c.ID}
	if err := r.askServers(ctx, c.TTL, q, rd.countReply); err != nil {
		return g, err
	}
	switch {
	case rd.broken:
		return g, &driver.LossError{Cause: driver.LossBroken}
	case rd.finalErr != nil:
		return g, rd.finalErr
	case rd.granted < r.majority:
		return g, errNoMajority
	}
	token, err := rd.agreeOnToken(ctx, keys)
	if err != nil {
		return g, err
	}
	// The requests may have taken so long that nothing of the TTL is left.
	if left := c.TTL - r.clock.Since(rd.start) - drift(c.TTL); left <= 0 {
		return g, fmt.Errorf("a majority granted the lock too late: %w", errNoMajority)
	}
	return driver.Grant{Claim: c, Token: token, Since: rd.start, GrantedTTL: c.TTL, Ref: c.ID}, nil
}

// countReply counts a reply to acquire.lua. It returns true when the outcome is certain: a majority granted the claim,
// or so many refused it that no majority can be left and none granted it. If some granted and some refused, it waits
// for the rest, since what was granted must be given back.
func (rd *round) countReply(v serverReply) bool {
	if v.err != nil {
		rd.countError(v)
		return false
	}
	if v.reply.IsInt64() && readNumber(v.reply) > 0 { // a new grant: the reply is its token
		rd.replies++
		return rd.countGrant(v.server, readNumber(v.reply))
	}
	a, ok := readArray(v.reply, 1)
	if !ok {
		return false
	}
	code := readNumber(a[0])
	if code == replyGranted && len(a) < 2 {
		return false // malformed
	}
	rd.replies++
	switch code {
	case replyGranted: // it was granted by an earlier request
		token := readNumber(a[1])
		if len(a) > 2 && strings.Contains(readString(a[2]), agreedFlag) {
			rd.agreed[token]++
		}
		return rd.countGrant(v.server, token)
	case replyBroken:
		rd.broken = true
	case replyHeld:
		rd.refused++
		if hs := readHolders(a[min(4, len(a)):]); len(hs) > 0 && len(rd.holders) == 0 {
			rd.holders = hs[:1]
		}
	case replyUseQueue:
		rd.refused++
		rd.holders = append(rd.holders, driver.ClaimInfo{Foreign: true, Owner: "a queue on one server", Weight: 1})
	}
	return rd.refused > len(rd.redlock.servers)-rd.redlock.majority && rd.granted == 0 && rd.replies >= rd.redlock.majority
}

// countGrant counts a server that has granted the claim, now or by an earlier request.
func (rd *round) countGrant(server int, token int64) (enough bool) {
	rd.granted++
	rd.tokens[server] = token
	return rd.granted >= rd.redlock.majority
}

// countError counts a server that denies access. A minority that denies it is treated like servers that are away, so
// that passwords can be changed one server after the other.
func (rd *round) countError(v serverReply) {
	f := rd.redlock.servers[v.server].finalError(v.err)
	if !errors.Is(f, driver.ErrDenied) {
		return
	}
	rd.denial = f
	if rd.denied++; rd.denied > len(rd.redlock.servers)-rd.redlock.majority {
		rd.finalErr = f
	}
}

// maxTokenRounds is how often a round proposes a token. A proposal fails if a server of the majority has a larger
// token, which its reply names, so that the next proposal is larger than all that were seen.
const maxTokenRounds = 8

// agreeOnToken has a majority store one token. It is larger than every token that the granting majority knew. Any later
// majority shares a server with the one that stored it: that server knows this token, and the later claim gets a larger
// one. The token is sent to all servers, since one of the minority may have granted the lock late.
func (rd *round) agreeOnToken(ctx context.Context, keys []string) (int64, error) {
	for token, n := range rd.agreed {
		if n >= rd.redlock.majority {
			// An earlier request of this claim got this token agreed on. It may be in use, so this grant has it too.
			return token, nil
		}
	}
	var token int64
	for _, t := range rd.tokens {
		token = max(token, t)
	}
	for range maxTokenRounds {
		token++
		taken, largest := 0, token
		q := serverScript{script: agreeTokenScript, keys: keys,
			args: []string{rd.claim.ID, strconv.FormatInt(token, 10)}}
		err := rd.redlock.askServers(ctx, rd.claim.TTL, q, func(v serverReply) bool {
			a, ok := readArray(v.reply, 1)
			switch {
			case v.err != nil || !ok:
			case readNumber(a[0]) == tokenTaken:
				taken++
			case readNumber(a[0]) == tokenTooSmall && len(a) > 1:
				largest = max(largest, readNumber(a[1]))
			}
			return taken >= rd.redlock.majority
		})
		if err != nil {
			return 0, err
		}
		if taken >= rd.redlock.majority {
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
func (rd *round) giveBack(ctx context.Context) {
	r, c := rd.redlock, &rd.claim
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverTime(c.TTL))
	defer cancel()
	keys := r.servers[0].keys.allKeys(c.Name)
	args := new(queueArgs).fill(r.servers[0], c.ID, "", "", rd.number)
	_, _ = r.countReplies(bounded, c.TTL, serverScript{script: plainScripts.releaseQueued, keys: keys[:], args: args})
}

// endedError is the error of an Acquire whose context has ended. It names the holders that the last round found, and
// says for how long no majority has replied.
func (rd *round) endedError(majorityReplied driver.Instant, err error) error {
	if len(rd.holders) > 0 {
		err = fmt.Errorf("%w; %w", err, &driver.HeldError{Holders: rd.holders})
	}
	if rd.replies < rd.redlock.majority {
		err = &driver.SilentError{For: rd.redlock.clock.Since(majorityReplied), Reason: rd.denial, Err: err}
	}
	return driverutil.Unresolved(err)
}
