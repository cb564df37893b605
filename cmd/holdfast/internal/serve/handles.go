package serve

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/acquire"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/driver"
)

// handleView is a handle, with what its holder needs to know.
type handleView struct {
	Handle    string        `json:"handle"`
	Lock      string        `json:"lock"`
	Kind      holdfast.Kind `json:"kind"`
	Limit     int64         `json:"limit"`
	Weight    int64         `json:"weight"`
	Token     int64         `json:"token"`
	Ref       string        `json:"ref"`
	TTL       int64         `json:"ttl_ms"`
	Remaining int64         `json:"remaining_ms"`
	Permits   []int64       `json:"permits,omitempty"`
	Also      []alsoView    `json:"also,omitempty"`
}

// alsoView is a lock that was acquired with another one.
type alsoView struct {
	Lock  string `json:"lock"`
	Token int64  `json:"token"`
	Ref   string `json:"ref"`
}

// lockHandle is the handle of a lock, and of those that were acquired with it: they are renewed and released together.
type lockHandle struct {
	holdfast.Handle
	also    []holdfast.Handle
	permits []int64 // that a semaphore's claim was granted with, if they have numbers; not part of what clients send
}

// all are the handles of all locks.
func (h lockHandle) all() []holdfast.Handle { return append([]holdfast.Handle{h.Handle}, h.also...) }

// alsoNames are the names of the locks besides the first.
func (h lockHandle) alsoNames() (names []string) {
	for _, a := range h.also {
		names = append(names, a.Name)
	}
	return names
}

// renewedView is the answer to a renewal.
type renewedView struct {
	Lock      string `json:"lock"`
	Token     int64  `json:"token"`
	TTL       int64  `json:"ttl_ms"`
	Remaining int64  `json:"remaining_ms"`
}

// encodeHandle makes a handle one word that fits in a path. Every server of the store can use it. That of several
// locks is a list, which a server of before does not take for the handle of the first.
func encodeHandle(h holdfast.Handle, also ...holdfast.Handle) string {
	var value any = h
	if len(also) > 0 {
		value = lockHandle{Handle: h, also: also}.all()
	}
	data, err := json.Marshal(value)
	if err != nil { // a name that is no UTF-8 was never granted
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// decodeHandle reads a handle that encodeHandle has made. With locks in also it is a list, whose first one is the
// lock of the path.
func decodeHandle(text string) (h lockHandle, err error) {
	all := make([]holdfast.Handle, 1)
	data, err := base64.RawURLEncoding.DecodeString(text)
	switch {
	case err != nil:
	case strings.HasPrefix(string(data), "["):
		err = json.Unmarshal(data, &all)
	default:
		err = json.Unmarshal(data, &all[0])
	}
	isNone := func(h holdfast.Handle) bool { return h.Name == "" || h.ID == "" || h.TTL <= 0 }
	if err != nil || len(all) == 0 || len(all) > 1+maxAlso || slices.ContainsFunc(all, isNone) {
		return h, newProblem(codeInvalid, "this is no handle; acquire, try and detach return one")
	}
	return lockHandle{Handle: all[0], also: all[1:]}, nil
}

// usableFor is for how long work may go on under a handle that was confirmed by a request which began at since.
func usableFor(ttl time.Duration, since time.Time) time.Duration {
	return ttl - driver.Margin(ttl) - time.Since(since)
}

// viewHandle is the answer to a grant. The time that remains counts from since, when the request to the store was
// sent.
func viewHandle(h lockHandle, since time.Time) handleView {
	var also []alsoView
	for _, a := range h.also {
		also = append(also, alsoView{Lock: a.Name, Token: a.Token, Ref: shown.HiddenRef(a.Ref)})
	}
	return handleView{Handle: encodeHandle(h.Handle, h.also...), Also: also, Lock: h.Name, Kind: h.Kind, Limit: h.Limit,
		Weight: h.Weight, Permits: h.permits, Token: h.Token, Ref: shown.HiddenRef(h.Ref), TTL: shown.Millis(h.TTL),
		Remaining: shown.Millis(usableFor(h.TTL, since))}
}

func (s *Server) acquire(w http.ResponseWriter, r *http.Request) error {
	return s.acquireHandle(w, r, false)
}

func (s *Server) try(w http.ResponseWriter, r *http.Request) error {
	return s.acquireHandle(w, r, true)
}

// acquireHandle answers acquire and try: a lock that outlives the connection and the server. With an
// Idempotency-Key a repeated request has the answer of the first one.
func (s *Server) acquireHandle(w http.ResponseWriter, r *http.Request, try bool) error {
	var body acquireBody
	if err := readBody(r, &body); err != nil {
		return err
	}
	key, err := keyOfRequest(r)
	if err != nil {
		return err
	}
	c, err := s.newClaims(r, &body)
	switch {
	case err != nil:
		return err
	case body.TTL == nil:
		return newProblem(codeInvalid, "ttl_ms is missing: for how long the lock stays held without a renewal")
	case try && c.limited:
		return newProblem(codeInvalid, "wait_ms is not for try")
	case !s.client.Info().Detached:
		return newProblem(codeUnsupported, "claims cannot outlive the server in this store; use hold")
	}
	if _, err := c.explain(s.client); err != nil {
		return err
	}
	if try && s.isClosing() {
		return errShuttingDown
	} else if try {
		c.limited, c.wait = true, 0
	} else if err := s.enterStream(); err != nil { // it may take as long
		return err
	} else {
		defer s.streams.leave()
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer s.whenClosing(func() { cancel(errShuttingDown) })()
	defer s.whenRevoked(r, func(err error) { cancel(err) })()
	if key != "" {
		handle, since, err := s.takeByKey(ctx, r, key, &c, body)
		if err == nil {
			_, err = s.checkRight(r) // it may have been lost during the wait
		}
		if err != nil {
			return err
		}
		return writeJSON(w, viewHandle(handle, since))
	}
	limited, cancelLimit := c.limitWait(ctx)
	defer cancelLimit()
	handle, since, err := s.takeHandle(limited, c.request())
	if err != nil {
		return err
	}
	_, err = s.checkRight(r)
	if err == nil && r.Context().Err() == nil {
		if err = writeJSON(w, viewHandle(handle, since)); err == nil {
			return nil
		}
	}
	releaseHandles(s.client, handle) // nobody has it, or may have it
	return err
}

// takeHandle acquires a lock, or several, and leaves them to a handle.
func (s *Server) takeHandle(ctx context.Context, r *acquire.Request) (h lockHandle, since time.Time, err error) {
	all, err := acquireLeases(ctx, s.client, r)
	if err != nil {
		return h, since, err
	}
	since = time.Now()
	if h, err = all.detach(); err != nil { // the handle may be worth nothing
		_ = all.Release()
	}
	return h, since, err
}

// whenClosing calls f when the server shuts down, unless stop was called before.
func (s *Server) whenClosing(f func()) (stop func() bool) { return context.AfterFunc(s.life, f) }

// handleOf is the handle in the path of a request, and a context for one step at the store.
func (s *Server) handleOf(w http.ResponseWriter, r *http.Request) (lockHandle, context.Context, context.CancelFunc, error) {
	h, err := lockHandle{}, readBody(r, nil)
	if err == nil {
		h, err = decodeHandle(r.PathValue("handle"))
	}
	if err != nil {
		return h, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	return h, ctx, cancel, nil
}

// renewHandle renews all locks of a handle. The time that remains counts from the beginning of the request.
func (s *Server) renewHandle(w http.ResponseWriter, r *http.Request) error {
	h, ctx, cancel, err := s.handleOf(w, r)
	if err != nil {
		return err
	}
	defer cancel()
	began := time.Now()
	ttl, err := s.renewHandles(ctx, h, s.renewClaim)
	if err != nil {
		return err
	}
	return writeJSON(w, renewedView{Lock: h.Name, Token: h.Token, TTL: shown.Millis(ttl),
		Remaining: shown.Millis(usableFor(ttl, began))})
}

// renewHandles renews all locks of a handle. If one is lost, the client must end its work, and the others end by
// their TTL at the latest: it may be working under them until it has got the answer.
func (s *Server) renewHandles(ctx context.Context, h lockHandle,
	renew func(context.Context, holdfast.Handle) (time.Duration, error)) (ttl time.Duration, err error) {
	for i, one := range h.all() {
		granted, err := renew(ctx, one)
		if err != nil {
			return 0, err
		}
		if i == 0 || granted < ttl {
			ttl = granted
		}
	}
	return ttl, nil
}

// renewClaim renews a claim, and returns its TTL. It releases one that an operator broke: its holder knows it then.
func (s *Server) renewClaim(ctx context.Context, h holdfast.Handle) (ttl time.Duration, err error) {
	ttl, err = s.client.Renew(ctx, h)
	var loss *holdfast.LossError
	if errors.As(err, &loss) && loss.Cause == holdfast.LossBroken {
		_ = s.client.Release(ctx, h)
	}
	return ttl, err
}

// releaseHandle renews each claim first, because only a renewal learns that an operator broke it. It releases all
// that it can.
func (s *Server) releaseHandle(w http.ResponseWriter, r *http.Request) error {
	h, ctx, cancel, err := s.handleOf(w, r)
	if err != nil {
		return err
	}
	defer cancel()
	var first error
	for _, one := range h.all() {
		_, err := s.renewClaim(ctx, one)
		if !errors.Is(err, holdfast.ErrLost) {
			err = s.client.Release(ctx, one)
		}
		first = cmp.Or(first, err)
	}
	if first != nil {
		return first
	}
	return writeJSON(w, releasedView{Lock: h.Name, Token: h.Token})
}
