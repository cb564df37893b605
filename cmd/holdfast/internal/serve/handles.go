package serve

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
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
}

// renewedView is the answer to a renewal.
type renewedView struct {
	Lock      string `json:"lock"`
	Token     int64  `json:"token"`
	TTL       int64  `json:"ttl_ms"`
	Remaining int64  `json:"remaining_ms"`
}

// encodeHandle makes a handle one word that fits in a path. Every server of the store can use it.
func encodeHandle(h holdfast.Handle) string {
	data, err := json.Marshal(h)
	if err != nil { // a name that is no UTF-8 was never granted
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

func decodeHandle(text string) (h holdfast.Handle, err error) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err != nil || h.Name == "" || h.ID == "" || h.TTL <= 0 {
		return h, newProblem(codeInvalid, "this is no handle; acquire, try and detach return one")
	}
	return h, nil
}

// usableFor is for how long work may go on under a handle that was confirmed by a request which began at since.
func usableFor(ttl time.Duration, since time.Time) time.Duration {
	return ttl - driver.Margin(ttl) - time.Since(since)
}

func viewHandle(h holdfast.Handle, since time.Time) handleView {
	return handleView{Handle: encodeHandle(h), Lock: h.Name, Kind: h.Kind, Limit: h.Limit, Weight: h.Weight,
		Token: h.Token, Ref: shown.HiddenRef(h.Ref), TTL: shown.Millis(h.TTL), Remaining: shown.Millis(usableFor(h.TTL, since))}
}

func (s *Server) acquire(w http.ResponseWriter, r *http.Request) error {
	return s.acquireHandle(w, r, false)
}

func (s *Server) try(w http.ResponseWriter, r *http.Request) error {
	return s.acquireHandle(w, r, true)
}

func (s *Server) acquireHandle(w http.ResponseWriter, r *http.Request, try bool) error {
	var body claimBody
	if err := readBody(r, &body); err != nil {
		return err
	}
	key, err := keyOfRequest(r)
	if err != nil {
		return err
	}
	c, err := newClaim(r, nameOf(r, "name"), &body)
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
	if _, err := c.request().Lockable(s.client).Explain(); err != nil {
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
	s.releaseUnsent(nil, handle) // nobody has it, or may have it
	return err
}

// takeHandle acquires a lock, and leaves it to a handle.
func (s *Server) takeHandle(ctx context.Context, r *acquire.Request) (h holdfast.Handle, since time.Time, err error) {
	lease, err := r.Acquire(ctx, s.client)
	if err != nil {
		return h, since, err
	}
	since = time.Now()
	if h, err = lease.Detach(); err != nil { // the handle may be worth nothing
		s.releaseUnsent(lease, h)
	}
	return h, since, err
}

// releaseUntold releases a lock of which its client does not know, at once: nobody has used it, so its MinHold is not
// kept, for which a lease that is released would stay held.
func (s *Server) releaseUntold(lease *holdfast.Lease) {
	handle, _ := lease.Detach()
	s.releaseUnsent(lease, handle)
}

// releaseUnsent releases a lock whose handle its client has not got.
func (s *Server) releaseUnsent(lease *holdfast.Lease, handle holdfast.Handle) {
	if handle.ID == "" {
		_ = lease.Release()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	_ = s.client.Release(ctx, handle)
}

// whenClosing calls f when the server shuts down, unless stop was called before.
func (s *Server) whenClosing(f func()) (stop func() bool) { return context.AfterFunc(s.life, f) }

// handleOf is the handle in the path of a request, and a context for one step at the store.
func (s *Server) handleOf(w http.ResponseWriter, r *http.Request) (holdfast.Handle, context.Context, context.CancelFunc,
	error) {
	h, err := holdfast.Handle{}, readBody(r, nil)
	if err == nil {
		h, err = decodeHandle(r.PathValue("handle"))
	}
	if err != nil {
		return h, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	return h, ctx, cancel, nil
}

func (s *Server) renewHandle(w http.ResponseWriter, r *http.Request) error {
	h, ctx, cancel, err := s.handleOf(w, r)
	if err != nil {
		return err
	}
	defer cancel()
	began := time.Now()
	ttl, err := s.renewClaim(ctx, h)
	if err != nil {
		return err
	}
	return writeJSON(w, renewedView{Lock: h.Name, Token: h.Token, TTL: shown.Millis(ttl),
		Remaining: shown.Millis(usableFor(ttl, began))})
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

// releaseHandle renews the claim first, because only a renewal learns that an operator broke it.
func (s *Server) releaseHandle(w http.ResponseWriter, r *http.Request) error {
	h, ctx, cancel, err := s.handleOf(w, r)
	if err != nil {
		return err
	}
	defer cancel()
	if _, err := s.renewClaim(ctx, h); errors.Is(err, holdfast.ErrLost) {
		return err
	}
	if err := s.client.Release(ctx, h); err != nil {
		return err
	}
	return writeJSON(w, releasedView{Lock: h.Name, Token: h.Token})
}
