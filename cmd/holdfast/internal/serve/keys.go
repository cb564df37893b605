package serve

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	keyHeader     = "Idempotency-Key"
	maxKeyLength  = 255    // bytes
	keysPerCaller = 10_000 // that the server knows; a further one takes the place of the oldest
)

// keyOfRequest is the key by which a retry of a request is known; empty if it has none.
func keyOfRequest(r *http.Request) (string, error) {
	values := r.Header.Values(keyHeader)
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	other := strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' })
	if len(values) > 1 || key == "" || len(key) > maxKeyLength || other {
		return "", newProblem(codeInvalid, "%s must be one text of 1 to %d printable ASCII characters", keyHeader, maxKeyLength)
	}
	return key, nil
}

// refuseKey refuses a key of a request that takes something and does not know keys: its client believes that it may be
// repeated.
func refuseKey(r *http.Request) error {
	if len(r.Header.Values(keyHeader)) == 0 {
		return nil
	}
	return newProblem(codeInvalid, "%s is for acquire and try alone: leave it out, and do not repeat this request as if it "+
		"counted", keyHeader)
}

// hashOptions is what the requests with one key have in common: all but how long they wait.
func hashOptions(c *claim, body acquireBody) [sha256.Size]byte {
	body.Wait = nil
	data, _ := json.Marshal(struct { // it was decoded from JSON
		acquireBody
		Waits bool `json:"waits"`
	}{body, c.waits()})
	return sha256.Sum256(data)
}

// keyedID names what a caller asks for with a key. No other caller finds it, whatever its key.
type keyedID struct{ caller, lock, key string }

// keyedClaim is a claim for all requests with one key. It does not end with the request that began it, as long as
// another one waits for it; and once it is granted it is kept for its TTL, since the server cannot know which clients
// have got their answer.
type keyedClaim struct {
	id      keyedID
	options [sha256.Size]byte
	cancel  context.CancelCauseFunc // ends the wait for the lock
	done    chan struct{}           // closed when the lock is granted, or was not
	handle  lockHandle              // once done
	since   time.Time               // once done: when the store was asked to confirm the handle
	err     error                   // once done

	// The mutex of the table guards the rest.
	requests  int // that wait for done
	withdrawn bool
	place     *list.Element
	expiry    *time.Timer // once the lock is granted
}

// keyTable has the claims of requests with keys: those that wait, and those that were granted less than their TTL ago.
type keyTable struct {
	mu       sync.Mutex
	byID     map[keyedID]*keyedClaim
	byCaller map[string]*list.List // of *keyedClaim, the oldest first
}

func (t *keyTable) init() {
	t.byID, t.byCaller = map[keyedID]*keyedClaim{}, map[string]*list.List{}
}

// join makes a request one of those for which a claim is made, and starts the claim if it is the first. It returns true
// if the request now waits for the claim: it must then call leave if it stops waiting before done.
func (t *keyTable) join(id keyedID, options [sha256.Size]byte, start func(context.Context, *keyedClaim)) (
	k *keyedClaim, waits bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k = t.byID[id]
	switch {
	case k == nil:
		k = t.add(id, options, start)
	case k.options != options:
		return nil, false, newProblem(codeKeyReused, "this %s was sent for this lock with other options, or "+
			"with the other of acquire and try; use a new key", keyHeader)
	case k.withdrawn || k.expiry != nil:
		return k, false, nil
	}
	k.requests++
	return k, true, nil
}

// add starts the claim of a new key. A caller with too many keys loses the oldest.
func (t *keyTable) add(id keyedID, options [sha256.Size]byte, start func(context.Context, *keyedClaim)) *keyedClaim {
	of := t.byCaller[id.caller]
	if of == nil {
		of = list.New()
		t.byCaller[id.caller] = of
	} else if of.Len() >= keysPerCaller {
		t.remove(of.Front().Value.(*keyedClaim))
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	k := &keyedClaim{id: id, options: options, cancel: cancel, done: make(chan struct{})}
	k.place = of.PushBack(k)
	t.byID[id] = k
	go start(ctx, k)
	return k
}

// remove forgets a claim. The mutex is held.
func (t *keyTable) remove(k *keyedClaim) {
	if t.byID[k.id] != k {
		return
	}
	delete(t.byID, k.id)
	of := t.byCaller[k.id.caller]
	if of.Remove(k.place); of.Len() == 0 {
		delete(t.byCaller, k.id.caller)
	}
}

// leave is called when a request waits no more. If it was the last, the claim is withdrawn.
func (t *keyTable) leave(k *keyedClaim, why error) (last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k.requests--
	if k.requests > 0 {
		return false
	}
	k.withdrawn = true
	k.cancel(why)
	return true
}

// finish ends the wait for a claim. A handle is kept until its TTL has passed.
func (t *keyTable) finish(k *keyedClaim, h lockHandle, since time.Time, err error) {
	k.cancel(nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	k.handle, k.since, k.err = h, since, err
	if err != nil {
		t.remove(k)
	} else {
		k.expiry = time.AfterFunc(h.TTL-time.Since(since), func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.remove(k)
		})
	}
	close(k.done)
}

// renewed keeps a handle for its TTL from when it was renewed.
func (t *keyTable) renewed(k *keyedClaim, ttl time.Duration, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[k.id] == k {
		k.expiry.Reset(ttl - time.Since(since))
	}
}

// takeByKey acquires the lock for a request with a key, or returns the handle that an earlier request with that key was
// granted, if it is still worth something.
func (s *Server) takeByKey(ctx context.Context, r *http.Request, key string, c *claim, body acquireBody) (
	h lockHandle, since time.Time, err error) {
	limited, cancel := c.limitWait(ctx)
	defer cancel()
	id := keyedID{nameOfCaller(r), c.name, key}
	options := hashOptions(c, body)
	for {
		k, waits, err := s.keys.join(id, options, func(ctx context.Context, k *keyedClaim) {
			h, since, err := s.takeHandle(ctx, c.request())
			s.keys.finish(k, h, since, err)
		})
		if err != nil {
			return h, since, err
		}
		if !waits {
			select {
			case <-k.done:
			case <-limited.Done():
				return h, since, context.Cause(limited)
			}
			if k.err != nil { // it was withdrawn, and is not in the table any more
				continue
			}
			return s.confirmKeyed(ctx, k)
		}
		select {
		case <-k.done:
		case <-limited.Done():
			if !s.keys.leave(k, context.Cause(limited)) {
				return h, since, context.Cause(limited)
			}
			<-k.done
		}
		return k.handle, k.since, k.err
	}
}

// confirmKeyed renews a handle that was granted to an earlier request. It may have been released meanwhile, or lost. A
// claim that an operator broke is not released here, as renewHandle does: somebody may have got the handle, and work.
func (s *Server) confirmKeyed(ctx context.Context, k *keyedClaim) (h lockHandle, since time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	h, since = k.handle, time.Now()
	if h.TTL, err = s.renewHandles(ctx, h, s.client.Renew); err == nil {
		s.keys.renewed(k, h.TTL, since)
	}
	return h, since, err
}

// nameOfCaller tells callers apart. Those on this machine without a token are one, but for the users of a unix socket.
func nameOfCaller(r *http.Request) string {
	c := callerOf(r)
	if user, _, ok := connectionOf(r).peer(); ok && c.name == "" {
		return "unix " + user
	}
	return "name " + c.name
}
