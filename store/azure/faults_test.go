package azure_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/azure"
	"github.com/holdfast-go/holdfast/store/azure/azuretest"
)

const (
	minute = time.Minute
	write  = azuretest.Write
)

var noFate azuretest.Fate

// azureFate adds headers to the replies.
func azureFate(h http.Header) azuretest.Fate { return azuretest.Fate{Header: h} }

// isWrite reports whether a request changes something.
func isWrite(r azuretest.Request) bool {
	return r.Kind == azuretest.Write || r.Kind == azuretest.Delete || r.Kind == azuretest.Metadata || r.Kind == azuretest.Lease
}

// TestLostReplies: a write whose reply is lost, or replaced by an error after its effect, is settled by a read. There
// is one claim, it keeps its token, and is gone after its release.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]azuretest.Fate{
		"the reply is lost":                {DropReply: true},
		"an error comes after the effect":  {Status: http.StatusInternalServerError, Code: "OperationTimedOut", After: true},
		"the service is busy":              {Status: http.StatusServiceUnavailable, Code: "ServerBusy"},
		"a refusal comes from a proxy":     {Status: http.StatusConflict},
		"another conflict after a success": {Status: http.StatusPreconditionFailed, Code: "ConditionNotMet", After: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t)
			var next atomic.Pointer[azuretest.Fate] // of one write
			s.Decide = func(r azuretest.Request) azuretest.Fate {
				if isWrite(r) {
					if f := next.Swap(nil); f != nil {
						return *f
					}
				}
				return noFate
			}
			store, other := mustOpen(t, s, azure.Options{}), mustOpen(t, s.second(t), azure.Options{})
			var last int64
			for range 10 {
				next.Store(&fate)
				g, err := store.Acquire(t.Context(), mutexClaim("m", minute))
				if err != nil || g.Token <= last || next.Load() != nil {
					t.Fatalf("acquiring: token %d after %d, %v", g.Token, last, err)
				}
				last = g.Token
				next.Store(&fate)
				if err := renew(t, store, g).Err; errors.Is(err, driver.ErrLost) {
					t.Fatalf("renewing: %v", err)
				}
				if err := renew(t, store, g).Err; err != nil {
					t.Fatalf("renewing again: %v", err)
				}
				l, err := other.Inspect(t.Context(), "m")
				if err != nil || len(l.Holders) != 1 || l.Holders[0].Token != g.Token {
					t.Fatalf("one claim should stand, but %+v, %v", l, err)
				}
				next.Store(&fate)
				if err := store.Release(t.Context(), g.Claim, ""); err != nil || next.Load() != nil {
					t.Fatalf("releasing: %v", err)
				}
				if l, err = other.Inspect(t.Context(), "m"); err != nil || len(l.Holders) != 0 {
					t.Fatalf("nothing should stand, but %+v, %v", l, err)
				}
			}
		})
	}
}

// TestOddDate: a host whose clock is ahead ends no living holder's claim for a client that has seen earlier replies.
func TestOddDate(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	s := startService(t)
	holder, other := mustOpen(t, s.second(t), azure.Options{}), mustOpen(t, s, azure.Options{})
	release(t, other, acquire(t, other, mutexClaim("before", minute)).Claim)
	g := acquire(t, holder, mutexClaim("m", ttl))
	believes := func() bool { return holder.Info().Clock.Since(g.Since) < ttl-driver.Margin(ttl) }
	s.Shift(25 * time.Second)
	for range 6 {
		if _, err := other.Acquire(t.Context(), mutexClaim("m", ttl)); !errors.Is(err, driver.ErrHeld) && believes() {
			t.Fatalf("next to a living holder: %v", err)
		}
	}
	next := acquire(t, other, storetest.Waiting(mutexClaim("m", ttl)))
	if believes() || next.Token <= g.Token {
		t.Errorf("let in %v after the start of a grant of %v, with token %d after %d", holder.Info().Clock.Since(g.Since), ttl,
			next.Token, g.Token)
	}
}

// TestWrongClock: the service refuses requests that are dated a quarter of an hour off. A client whose own clock is
// wrong learns the time from the refusal, and keeps to it.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	for _, shift := range []time.Duration{time.Hour, -time.Hour} {
		s := startService(t)
		s.Shift(shift)
		store := mustOpen(t, s, azure.Options{Clock: shiftedClock(shift)})
		g := acquire(t, store, mutexClaim("m", minute))
		if r := renew(t, store, g); r.Err != nil {
			t.Error(r.Err)
		}
		release(t, store, g.Claim)
	}
}

// TestRefusals: what the service says in its error codes is told apart, also where the status is the same.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := startService(t)
	store := mustOpen(t, s, azure.Options{})
	for code, want := range map[string]struct {
		status int
		err    error
		says   string
	}{
		"ContainerNotFound":                  {404, driver.ErrDenied, "no such container"},
		"ContainerBeingDeleted":              {409, driver.ErrDenied, "being deleted"},
		"BlobImmutableDueToPolicy":           {409, driver.ErrDenied, "immutability policy"},
		"BlobImmutableDueToLegalHold":        {409, driver.ErrDenied, "legal hold"},
		"LeaseIdMissing":                     {412, driver.ErrDenied, "has leased the blob"},
		"AuthorizationPermissionMismatch":    {403, driver.ErrDenied, "permission to create and to write blobs"},
		"AuthorizationFailure":               {403, nil, ""},
		"KeyBasedAuthenticationNotPermitted": {403, driver.ErrDenied, "permits no keys"},
		"InvalidHeaderValue":                 {400, driver.ErrInvalid, "InvalidHeaderValue"},
		"InvalidBlobType":                    {409, driver.ErrDenied, "page blob"},
		"AccountBeingCreated":                {409, nil, ""},
		"ServerBusy":                         {503, nil, ""},
		"InternalError":                      {500, nil, ""},
	} {
		s.Answer(write, azuretest.Fate{Status: want.status, Code: code, Message: "the service's words"})
		limit := 15 * time.Second
		if want.err == nil {
			limit = 300 * time.Millisecond // it is tried again for as long as that
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := store.Acquire(ctx, mutexClaim("m", minute))
		cancel()
		switch {
		case want.err == nil && (err == nil || driverutil.IsFinal(err)):
			t.Errorf("%s, after which it is tried again: %v", code, err)
		case want.err != nil && (!errors.Is(err, want.err) || !strings.Contains(err.Error(), want.says)):
			t.Errorf("%s: %v", code, err)
		}
	}
}

// silentTransport is a service with an empty container that stops answering.
type silentTransport struct{ silent bool }

func (m *silentTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if m.silent {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	h := http.Header{"Date": {time.Now().UTC().Format(http.TimeFormat)}, "X-Ms-Request-Id": {"1"}, "X-Ms-Version": {"1"},
		"X-Ms-Error-Code": {"BlobNotFound"}}
	if r.URL.Query().Get("restype") != "" {
		h.Set("X-Ms-Error-Code", "AuthorizationPermissionMismatch")
		return &http.Response{StatusCode: http.StatusForbidden, Header: h, Body: http.NoBody, Request: r}, nil
	}
	return &http.Response{StatusCode: http.StatusNotFound, Header: h, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// TestServiceStopsAnswering: when the service does not answer although the connection works, a wait ends after the
// claim's unreachable timeout, even if the caller's context does not end.
func TestServiceStopsAnswering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &silentTransport{}
		s, err := azure.New(t.Context(), &http.Client{Transport: m}, "https://account.example/locks", nil)
		if err != nil {
			t.Fatal(err)
		}
		m.silent = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		from := time.Now()
		_, err = s.Acquire(ctx, storetest.Waiting(mutexClaim("m", time.Minute)))
		if took := time.Since(from); took > 30*time.Second || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", took, err)
		}
		from = time.Now()
		if _, err = s.Inspect(ctx, "m"); time.Since(from) > 30*time.Second || err == nil || errors.Is(err, driver.ErrUncertain) {
			t.Errorf("after %v: %v", time.Since(from), err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestRequests promises what each step costs: a take of a lock that does not exist, or is as this client has seen it
// last, is one write, and so are a renewal and a release. Seeing what another client has done is one more read.
func TestRequests(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startService(t)
	ours, theirs := mustOpen(t, s, azure.Options{}), mustOpen(t, s, azure.Options{})
	expect := func(what, want string) {
		t.Helper()
		if got := s.Counts(); got != want {
			t.Errorf("%s took %s, not %s", what, got, want)
		}
	}
	expect("opening twice", "read 2, container 2")
	a := acquire(t, ours, mutexClaim("m", minute))
	expect("taking an absent lock", "write 1")
	if err := renew(t, ours, a).Err; err != nil {
		t.Fatal(err)
	}
	expect("renewing", "write 1")
	release(t, ours, a.Claim)
	expect("releasing", "write 1")
	a = acquire(t, ours, mutexClaim("m", minute))
	expect("taking a lock as it was left", "write 1")
	if _, err := theirs.Acquire(ctx, mutexClaim("m", minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	expect("being refused by a stranger's lock", "read 1, write 1")
	if _, err := theirs.Acquire(ctx, mutexClaim("m", minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	expect("being refused again", "read 1")
	release(t, ours, a.Claim)
	expect("releasing", "write 1")
	a = acquire(t, theirs, mutexClaim("m", minute))
	expect("taking a lock that a stranger has left", "read 1, write 1")
	if err := ours.Release(ctx, a.Claim, a.Ref); err != nil {
		t.Fatal(err)
	}
	expect("releasing from another process", "read 1, write 1")

	acquire(t, theirs, mutexClaim("m", minute))
	if _, err := ours.Acquire(ctx, mutexClaim("m", minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	s.Counts()
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := ours.Acquire(short, storetest.Waiting(mutexClaim("m", minute))); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	cost := s.Counts()
	t.Logf("a waiter's requests in its first 5 s: %s (times 12 for a minute, at most)", cost)
	if strings.Contains(cost, "write") {
		t.Errorf("a waiting claim writes: %s", cost)
	}
}
