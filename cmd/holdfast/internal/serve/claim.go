package serve

import (
	"context"
	"errors"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/acquire"
)

// claimBody is what requests for a lock have in common.
type claimBody struct {
	Kind   holdfast.Kind `json:"kind"`
	Shared bool          `json:"shared"`
	Limit  int64         `json:"limit"`
	Weight *int64        `json:"weight"`
	Fair   bool          `json:"fair"`
	Newest bool          `json:"newest_only"`
	TTL    *int64        `json:"ttl_ms"`
	Wait   *int64        `json:"wait_ms"`
	Owner  string        `json:"owner"`
	Note   string        `json:"note"`
}

// acquireBody is a request for a lock, or for several.
type acquireBody struct {
	claimBody
	Also []string `json:"also,omitempty"`
}

// maxAlso is how many locks a request may name besides its own.
const maxAlso = 15

// claim is a lock that a request names, and how it wants to hold it.
type claim struct {
	name    string
	also    []string // mutexes that are acquired with it, all or none
	kind    holdfast.Kind
	shared  bool
	limit   int64
	weight  int64
	opts    holdfast.LockOptions
	wait    time.Duration // how long to wait at most
	limited bool          // there is such a limit
}

// newClaim checks what the library cannot check.
func newClaim(r *http.Request, name string, b *claimBody) (c claim, err error) {
	c = claim{name: name, kind: b.Kind, shared: b.Shared, limit: b.Limit,
		opts: holdfast.LockOptions{Fair: b.Fair, NewestOnly: b.Newest, Meta: b.Note, Owner: b.Owner}}
	if c.kind == "" {
		c.kind = holdfast.KindMutex
	}
	if c.opts.Owner == "" {
		c.opts.Owner = defaultOwner(r)
	}
	switch c.kind {
	case holdfast.KindSemaphore:
		if c.limit == 0 {
			return c, newProblem(codeInvalid, "a semaphore needs a limit of 1 or more")
		}
		c.weight = 1
		if b.Weight != nil {
			c.weight = *b.Weight
		}
		if c.weight < 1 {
			return c, newProblem(codeInvalid, "a weight must be 1 or more, not %d", c.weight)
		}
	case holdfast.KindMutex, holdfast.KindRW:
		if c.limit != 0 || b.Weight != nil {
			return c, newProblem(codeInvalid, "limit and weight are for the kind semaphore")
		}
	default:
		return c, newProblem(codeInvalid, "the kind must be mutex, rw or semaphore, not %q", c.kind)
	}
	if c.shared && c.kind != holdfast.KindRW {
		return c, newProblem(codeInvalid, "shared is for the kind rw")
	}
	if b.TTL != nil {
		if c.opts.TTL, err = milliseconds("ttl_ms", *b.TTL); err != nil {
			return c, err
		}
		if c.opts.TTL == 0 {
			return c, newProblem(codeInvalid, "ttl_ms must not be 0")
		}
	}
	if b.Wait != nil {
		c.limited = true
		c.wait, err = milliseconds("wait_ms", *b.Wait)
	}
	return c, err
}

// newClaims checks a request for a lock, or for several: its caller needs the right on each.
func (s *Server) newClaims(r *http.Request, b *acquireBody) (claim, error) {
	c, err := newClaim(r, nameOf(r, "name"), &b.claimBody)
	if err == nil {
		err = c.addAlso(b.Also)
	}
	if a := admissionOf(r); err == nil && a != nil {
		a.also = c.also
		_, err = s.checkRight(r)
	}
	return c, err
}

// addAlso adds more locks to a claim.
func (c *claim) addAlso(names []string) error {
	if len(names) > maxAlso {
		return newProblem(codeInvalid, "also has at most %d names", maxAlso)
	}
	for i, name := range names {
		if name == c.name || slices.Contains(names[:i], name) {
			return newProblem(codeInvalid, "%q is named twice", name)
		}
	}
	if len(names) > 0 && c.opts.NewestOnly {
		return newProblem(codeInvalid, "newest_only is for one lock, without also")
	}
	c.also = names
	if handle := c.longestHandle(); len(handle) > maxHandle {
		return newProblem(codeInvalid, "the handle of these locks would be too long for the path of a request (%d bytes, and "+
			"%d are possible): name fewer locks in also, or give them shorter names", len(handle), maxHandle)
	}
	return nil
}

// longestHandle is as long as any handle that the claim could be granted. It must fit in the path of a request, or the
// lock could not be released.
func (c *claim) longestHandle() string {
	const id, ref = 40, 64 // bytes, more than any store has
	h := holdfast.Handle{Name: c.name, Kind: c.kind, Limit: c.limit, Weight: c.weight, TTL: c.opts.TTL,
		ID: strings.Repeat("x", id), Ref: strings.Repeat("x", ref), Token: math.MaxInt64}
	var also []holdfast.Handle
	for _, name := range c.also {
		h := h
		h.Name = name
		also = append(also, h)
	}
	return encodeHandle(h, also...)
}

// explain says how the store keeps the first lock of the claim, or why it cannot keep one of them.
func (c *claim) explain(client *holdfast.Client) (holdfast.Plan, error) {
	plan, err := c.request().Lockable(client).Explain()
	for _, name := range c.also {
		if err == nil {
			_, err = client.Mutex(name, &c.opts).Explain()
		}
	}
	return plan, err
}

// request is what the loop that acquires needs of the claim.
func (c *claim) request() *acquire.Request {
	return &acquire.Request{Name: c.name, Kind: c.kind, Shared: c.shared, Limit: c.limit, Weight: c.weight,
		Options: c.opts, Wait: c.waits(), Also: c.also}
}

// waits reports whether the claim waits for a lock that is held.
func (c *claim) waits() bool { return !c.limited || c.wait > 0 }

var errWaitLimit = errors.New("the lock was not granted in time")

// limitWait is ctx for as long as the claim may wait.
func (c *claim) limitWait(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.limited && c.waits() {
		return context.WithTimeoutCause(ctx, c.wait, errWaitLimit)
	}
	return ctx, func() {}
}

// acquire waits for the locks, for as long as the claim says.
func (c *claim) acquire(ctx context.Context, client *holdfast.Client) (*leases, error) {
	ctx, cancel := c.limitWait(ctx)
	defer cancel()
	return acquireLeases(ctx, client, c.request())
}

// isOthers reports whether a claim in the store is none of this request, by the owner and the note.
func (c *claim) isOthers(h holdfast.ClaimInfo) bool {
	return h.Owner != c.opts.Owner || h.Meta != c.opts.Meta
}

// hostName is this machine's name; empty if it is not known.
var hostName = sync.OnceValue(func() string {
	name, _ := os.Hostname()
	return name
})

// defaultOwner names who has sent a request: by the name of the token or certificate, and by the connection.
func defaultOwner(r *http.Request) string {
	from := r.RemoteAddr
	if name, pid, ok := connectionOf(r).peer(); ok {
		from = name + "@" + hostName()
		if pid != 0 {
			from += " [" + strconv.Itoa(pid) + "]"
		}
	}
	if c := callerOf(r); c.name != "" {
		from = c.name + " " + from
	}
	return from
}
