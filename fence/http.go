package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
)

// Header is the name of the HTTP header that carries a token: the token in decimal digits, and the name of its lock,
// percent-encoded, if it is known:
//
//	Fencing-Token: 1795401133863312; lock=stock%2Fshoe
const Header = "Fencing-Token"

// Types of the problems that [Guard] reports, as in RFC 9457.
const (
	ProblemStale       = "urn:holdfast:problem:stale-token"         // 412: another holder has written since
	ProblemMissing     = "urn:holdfast:problem:missing-token"       // 428: the request has no token
	ProblemInvalid     = "urn:holdfast:problem:invalid-token"       // 400: what it has is not a token
	ProblemOtherLock   = "urn:holdfast:problem:token-of-other-lock" // 400: the token is that of another lock
	ProblemUnavailable = "urn:holdfast:problem:fence-unavailable"   // 503: the largest token could not be read
)

// problem is the body of a refusal: application/problem+json.
type problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail"`
	Resource string `json:"resource,omitempty"`
	// As text, because many languages read numbers of this size wrongly.
	Token   string `json:"token,omitempty"`
	Largest string `json:"largest,omitempty"`
}

// Guard lets through to a resource only those requests that bring a valid token.
//
// It keeps the fence's promise only as far as its Gate does: see [Gate]. A handler that writes to a database should
// also call [SQL.Check] in its transaction, with [FromContext].
//
// Who may call must be checked before: anyone who sends a large token keeps all others out. While a handler waits for
// the body of a caller that was stopped, the next holder waits, too. So set http.Server.ReadTimeout.
//
// A handler must have written when it returns: the next holder enters then. So put http.TimeoutHandler around the
// Guard's handler, not inside: it returns at the timeout although the handler inside it goes on. If it must be inside,
// the handler must call [SQL.Check].
type Guard struct {
	// Gate keeps the largest tokens.
	Gate Gate
	// Resource returns the name of what a request writes to; empty if it needs no token, such as one that only reads.
	// It should be the name of the lock that protects the resource: a token that says it is that of another lock is
	// refused.
	Resource func(*http.Request) string
	// OnError, if it is set, is called with the error of a gate that cannot check a token now. The caller gets a
	// problem that does not show the error, since it may name servers that are none of the caller's business.
	OnError func(*http.Request, error)
}

// Gate keeps the largest token per resource for a [Guard], and keeps writers with different tokens apart.
type Gate interface {
	// Enter lets a writer in, which calls leave when it has written. It returns a *StaleError if the resource has
	// seen a larger token. While a writer with a smaller token is in, it waits until ctx ends. Once it has let a
	// writer in, no writer with a smaller token enters.
	Enter(ctx context.Context, resource string, t Token) (leave func(), err error)
}

// Handler returns a handler that calls next for requests with a valid token. Other requests get a problem as in RFC
// 9457: 412 for a stale token, 428 for none, 400 for what is not a token, or not one of this resource's lock,
// 503 if the token cannot be checked now. It panics if the Guard has no Gate or no Resource.
func (g *Guard) Handler(next http.Handler) http.Handler {
	if g.Gate == nil || g.Resource == nil {
		panic("fence: a Guard needs a Gate and a Resource")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resource := g.Resource(r)
		if resource == "" {
			next.ServeHTTP(w, r)
			return
		}
		t, lock, p := readHeader(r.Header)
		if p == nil && lock != "" && lock != resource {
			p = newProblem(ProblemOtherLock, http.StatusBadRequest,
				fmt.Sprintf("the token is that of the lock %q, and this resource is protected by %q", lock, resource))
		}
		if p != nil {
			p.Resource = resource
			p.write(w)
			return
		}
		leave, err := g.Gate.Enter(r.Context(), resource, t)
		if err != nil {
			p := newProblem(ProblemUnavailable, http.StatusServiceUnavailable, "the largest token is not known; try again later")
			if stale, ok := errors.AsType[*StaleError](err); ok {
				p = newProblem(ProblemStale, http.StatusPreconditionFailed, err.Error())
				p.Largest = stale.Largest.String()
			} else if g.OnError != nil {
				g.OnError(r, err)
			}
			p.Resource, p.Token = resource, t.String()
			p.write(w)
			return
		}
		defer leave()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), contextKey{}, t)))
	})
}

// contextKey is the key of a token in a context.
type contextKey struct{}

// FromContext returns the token of the request that a handler below a [Guard] serves; false if the request needed none.
func FromContext(ctx context.Context) (Token, bool) {
	t, ok := ctx.Value(contextKey{}).(Token)
	return t, ok
}

// readHeader reads the token of a request, and the name of its lock if it says so.
func readHeader(h http.Header) (t Token, lock string, p *problem) {
	refuse := func(kind string, status int, format string, args ...any) (Token, string, *problem) {
		return 0, "", newProblem(kind, status, fmt.Sprintf(format, args...))
	}
	values := h.Values(Header)
	switch {
	case len(values) == 0:
		return refuse(ProblemMissing, http.StatusPreconditionRequired, "the header %s is missing", Header)
	case len(values) > 1 || strings.Contains(values[0], ","):
		return refuse(ProblemInvalid, http.StatusBadRequest, "the header %s has more than one value", Header)
	}
	digits, parameter, hasParameter := strings.Cut(values[0], ";")
	t, err := Parse(strings.TrimSpace(digits))
	if err != nil {
		return refuse(ProblemInvalid, http.StatusBadRequest, "%v", err)
	}
	if hasParameter {
		escaped, ok := strings.CutPrefix(strings.TrimSpace(parameter), "lock=")
		if lock, err = url.PathUnescape(escaped); err != nil || !ok || lock == "" {
			return refuse(ProblemInvalid, http.StatusBadRequest, "%q after the token is not lock=NAME", parameter)
		}
	}
	return t, lock, nil
}

var titles = map[string]string{
	ProblemStale:       "The fencing token is stale",
	ProblemMissing:     "A fencing token is required",
	ProblemInvalid:     "The fencing token is invalid",
	ProblemOtherLock:   "The fencing token is that of another lock",
	ProblemUnavailable: "The fencing token cannot be checked now",
}

func newProblem(kind string, status int, detail string) *problem {
	return &problem{Type: kind, Title: titles[kind], Status: status, Detail: detail}
}

func (p *problem) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // an error is that of the connection, and the caller sees it
}

// SetHeader sets the token of a holder in the header of a request. It refuses a holder that cannot fence, or whose
// lease has ended, with the error of [Of] or of the lease.
func SetHeader(h http.Header, holder Holder) error {
	t, err := Of(holder)
	if err != nil {
		return err
	}
	if err := holder.Err(); err != nil {
		return err
	}
	value := t.String()
	if l, ok := holder.(interface{ Name() string }); ok {
		value += "; lock=" + url.PathEscape(l.Name())
	}
	h.Set(Header, value)
	return nil
}

// Transport is an http.RoundTripper that sends the token of a holder with each request. Requests of a holder whose
// lease has ended are not sent. A host to which a server redirects a request gets the token, too. To learn that a
// server has refused a stale token, call [ResponseError].
type Transport struct {
	Holder Holder
	Base   http.RoundTripper // default: http.DefaultTransport
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	r = r.Clone(r.Context())
	if err := SetHeader(r.Header, t.Holder); err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	return base.RoundTrip(r)
}

// ResponseError returns a [*StaleError] if a [Guard] has refused the request because its token is stale, and otherwise
// nil. If it returns an error, it has read the body. A nil response is [ErrInvalid].
func ResponseError(r *http.Response) error {
	if r == nil {
		return invalid("the response is nil: look at the error of the request first")
	}
	if r.StatusCode != http.StatusPreconditionFailed {
		return nil
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/problem+json" {
		return nil
	}
	const maxProblem = 64 << 10
	var p problem
	if err := json.NewDecoder(io.LimitReader(r.Body, maxProblem)).Decode(&p); err != nil {
		return fmt.Errorf("read the refusal of a request: %w", err)
	}
	if p.Type != ProblemStale {
		return fmt.Errorf("the server refuses the request: %s", p.Detail)
	}
	token, _ := Parse(p.Token)
	largest, _ := Parse(p.Largest)
	return &StaleError{Resource: p.Resource, Token: token, Largest: largest}
}
