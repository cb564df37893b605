package s3_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/canceltest"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/s3"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

// TestLostReplies: a write whose reply is lost, or replaced by an error after its effect, or that the service asks to
// send again, is settled by a read. There is one claim, it keeps its token, and is gone after its release. Where
// nothing remains of a free lock, the release may say that it does not know who ended the claim.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]s3test.Fate{
		"the reply is lost":                {DropReply: true},
		"an error comes after the effect":  {ReplaceStatus: http.StatusServiceUnavailable},
		"a conflict comes after it":        {ReplaceStatus: http.StatusConflict, Code: "ConditionalRequestConflict"},
		"the request is refused, not done": {RefuseStatus: http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, layout := range layouts {
				s := startServer(t)
				var next atomic.Pointer[s3test.Fate] // of one write
				s.Decide = func(r s3test.Request) s3test.Fate {
					if r.Kind == s3test.Write || r.Kind == s3test.Delete {
						if f := next.Swap(nil); f != nil {
							return *f
						}
					}
					return s3test.Fate{}
				}
				store, other := mustOpen(t, s, layoutOptions(layout)), mustOpen(t, s, layoutOptions(layout))
				forgets := layout != s3.LayoutRecord // and it cannot be known who removed an object
				var last int64
				rounds := countFor(3, 1000)
				for range rounds {
					next.Store(&fate)
					g, err := store.Acquire(t.Context(), mutexClaim("m", time.Minute))
					if err != nil || g.Token <= last || next.Load() != nil {
						t.Fatalf("%s: acquiring: token %d after %d, %v", layout, g.Token, last, err)
					}
					last = g.Token
					next.Store(&fate)
					if err := renew(t, store, g).Err; errors.Is(err, driver.ErrLost) {
						t.Fatalf("%s: renewing: %v", layout, err)
					}
					if err := renew(t, store, g).Err; err != nil {
						t.Fatalf("%s: renewing again: %v", layout, err)
					}
					l, err := other.Inspect(t.Context(), "m")
					if err != nil || len(l.Holders) != 1 || l.Holders[0].Token != g.Token {
						t.Fatalf("%s: one claim should stand, but %+v, %v", layout, l, err)
					}
					next.Store(&fate)
					if err := store.Release(t.Context(), g.Claim, ""); err != nil &&
						!(forgets && errors.Is(err, driver.ErrUncertain)) || next.Load() != nil {
						t.Fatalf("%s: releasing: %v", layout, err)
					}
					if l, err = other.Inspect(t.Context(), "m"); err != nil || len(l.Holders) != 0 {
						t.Fatalf("%s: nothing should stand, but %+v, %v", layout, l, err)
					}
				}
				t.Logf("%s, layout %s: %d acquires, renewals and releases settled", name, layout, rounds)
			}
		})
	}
}

// TestSentAgain: a proxy that lost a reply sends the request again, and the second reply is a refusal. The claim is
// granted and renewed nevertheless, and its release does not say that it was lost. Where nothing remains of a free
// lock, the release may say that it does not know who ended the claim.
func TestSentAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		layout s3.Layout
		flaws  s3test.Flaws
		maybe  bool // the release may not know
	}{{layout: s3.LayoutRecord}, {layout: s3.LayoutTerraform, maybe: true},
		{layout: s3.LayoutTerraform, flaws: s3test.Flaws{AbsentIsOther: true}, maybe: true},
		{layout: s3.LayoutTerraform, flaws: s3test.Flaws{DeleteAbsent: true}}} {
		s := startServer(t)
		s.SetFlaws(c.flaws)
		var again atomic.Bool
		s.Decide = func(r s3test.Request) (f s3test.Fate) {
			changes := r.Kind == s3test.Write || r.Kind == s3test.Delete
			f.Twice = changes && again.CompareAndSwap(true, false)
			return f
		}
		store := mustOpen(t, s, layoutOptions(c.layout))
		again.Store(true)
		g := acquire(t, store, mutexClaim("m", time.Minute))
		again.Store(true)
		if err := renew(t, store, g).Err; err != nil {
			t.Errorf("%s: renewing: %v", c.layout, err)
		}
		again.Store(true)
		err := store.Release(t.Context(), g.Claim, "")
		if again.Load() || err != nil && !(c.maybe && errors.Is(err, driver.ErrUncertain)) {
			t.Errorf("%s: releasing: %v", c.layout, err)
		}
		if l, err := store.Inspect(t.Context(), "m"); err != nil || len(l.Holders) != 0 {
			t.Errorf("%s: after the release: %+v, %v", c.layout, l, err)
		}
	}
}

// TestRedirects: no redirect is followed, also by a client of the caller: a write that became a read would look like a
// success, and a session token would go to another host.
func TestRedirects(t *testing.T) {
	s := startServer(t)
	t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	var status atomic.Int64
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code := int(status.Load()); code != 0 {
			http.Redirect(w, r, s.URL+r.URL.RequestURI(), code)
			return
		}
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	opened, err := driver.Open(t.Context(), fmt.Sprintf("s3://%s/?endpoint=%s", bucket, front.URL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	made, err := s3.New(t.Context(), newClient(t, front.URL), bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { made.Close() })
	for what, store := range map[string]driver.Store{"opened": opened, "made": made} {
		g := acquire(t, store, mutexClaim(what, time.Minute))
		s.Counts()
		for _, code := range []int{301, 302, 303, 307, 308} {
			status.Store(int64(code))
			if err := renew(t, store, g).Err; err == nil || errors.Is(err, driver.ErrLost) {
				t.Errorf("%s: a renewal that gets a %d: %v", what, code, err)
			}
		}
		status.Store(0)
		if n := s.Counts(); n != "" {
			t.Errorf("%s: redirects were followed: %s", what, n)
		}
		release(t, store, g.Claim)
	}
}

// TestForeign404: only NoSuchKey says that there is no object. A proxy that answers 404 because it does not find the
// service ends no lease, and makes no client send requests without a pause.
func TestForeign404(t *testing.T) {
	t.Parallel()
	for what, fate := range map[string]s3test.Fate{
		"a page":       {RefuseStatus: http.StatusNotFound, Text: "404 page not found"},
		"another code": {RefuseStatus: http.StatusNotFound, Code: "NotFound"},
	} {
		for _, layout := range layouts {
			s := startServer(t)
			var away atomic.Bool
			s.Decide = func(s3test.Request) s3test.Fate {
				if away.Load() {
					return fate
				}
				return s3test.Fate{}
			}
			store, other := mustOpen(t, s, layoutOptions(layout)), mustOpen(t, s, layoutOptions(layout))
			g := acquire(t, store, mutexClaim("m", time.Minute))
			away.Store(true)
			if err := renew(t, store, g).Err; err == nil || driverutil.IsFinal(err) || errors.Is(err, driver.ErrLost) {
				t.Errorf("%s, %s: a renewal says %v", layout, what, err)
			}
			l, err := other.Inspect(t.Context(), "m")
			if err == nil {
				t.Errorf("%s, %s: shown is %+v", layout, what, l)
			}
			s.Counts()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := other.Acquire(ctx, mutexClaim("other", time.Minute)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, %s: a try says %v", layout, what, err)
			}
			cancel()
			var reads, writes int
			if n, _ := fmt.Sscanf(s.Counts(), "read %d, write %d", &reads, &writes); n == 2 && reads+writes > 100 {
				t.Errorf("%s, %s: a try sent %d reads and %d writes in a second", layout, what, reads, writes)
			}
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
			// The renewal has forgotten the row, so the release only reads, and sends nothing that could take effect.
			if err := store.Release(ctx, g.Claim, ""); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, %s: a release says %v", layout, what, err)
			}
			cancel()
			away.Store(false)
			if err := renew(t, store, g).Err; err != nil {
				t.Errorf("%s, %s: a renewal after that: %v", layout, what, err)
			}
			release(t, store, g.Claim)
		}
	}
}

// TestReadsAgain: a read that failed is sent again at once, but not to a service that asks for fewer requests.
func TestReadsAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		code   string
		want   string
	}{{503, "SlowDown", "read 1"}, {429, "TooManyRequests", "read 1"}, {500, "InternalError", "read 3"}} {
		s := startServer(t)
		s.Decide = func(s3test.Request) s3test.Fate { return s3test.Fate{RefuseStatus: c.status, Code: c.code} }
		if _, err := s3.New(t.Context(), newClient(t, s.URL), bucket, nil); err == nil {
			t.Errorf("opened on a service that says %d", c.status)
		}
		if n := s.Counts(); n != c.want {
			t.Errorf("a service that says %d got %s, not %s", c.status, n, c.want)
		}
	}
}

// TestCancels: claims that are canceled at any moment are gone a second after their release.
func TestCancels(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			s.Decide = func(s3test.Request) s3test.Fate { return s3test.Fate{ReplyDelay: 2 * time.Millisecond} }
			opened := make([]driver.Store, 4)
			for i := range opened {
				opened[i] = mustOpen(t, s, layoutOptions(layout))
			}
			canceltest.Run(t, opened, int64(countFor(60, 5000)), 20*time.Millisecond, func(worker int) driver.Claim {
				c := mutexClaim(fmt.Sprint("m", worker), time.Minute)
				c.Wait = rand.N(2) == 0
				return c
			}, *prove)
		})
	}
}

// TestDeadHolder: a process that tries once, and has not watched before, replaces a dead holder within three seconds
// after its TTL, and not before. The clients' clocks, and that of the service, are hours apart.
func TestDeadHolder(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			s.Shift(-2 * time.Hour)
			const ttl, late = 3 * time.Second, 3 * time.Second
			fast := layoutOptions(layout)
			fast.Clock = shiftedClock(time.Hour)
			holder, other := mustOpen(t, s, layoutOptions(layout)), mustOpen(t, s, fast)
			var machine pace.Pace
			defer machine.Watch()()
			g := acquire(t, holder, mutexClaim("m", ttl))
			silent := time.Now()
			for {
				next, err := other.Acquire(t.Context(), mutexClaim("m", time.Minute))
				if errors.Is(err, driver.ErrHeld) {
					if over := time.Since(silent) - ttl - machine.Lost(silent); over > late {
						t.Fatalf("refused %v after the end of the TTL", over)
					}
					time.Sleep(50 * time.Millisecond)
					continue
				}
				if since := holder.Info().Clock.Since(g.Since); err != nil || since < ttl || next.Token <= g.Token {
					t.Errorf("let in after %v, with token %d after %d: %v", since, next.Token, g.Token, err)
				}
				return
			}
		})
	}
}

// TestAfterIdleHours: a client that has sent nothing for hours knows the service's clock badly. It reads before it
// makes a claim, so the claim expires a TTL after its client's death, and not minutes later.
func TestAfterIdleHours(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		s := startServer(t)
		var passed atomic.Int64
		hand := func() time.Duration { return driver.SystemClock.Monotonic() + time.Duration(passed.Load()) }
		o := layoutOptions(layout)
		o.Clock = driver.Clock{Monotonic: hand, Boottime: hand}
		store := mustOpen(t, s, o)
		const idle = 5 * time.Hour
		passed.Store(int64(idle))
		s.Shift(idle)
		var machine pace.Pace
		stop := machine.Watch()
		began := time.Now()
		acquire(t, store, mutexClaim("m", time.Minute))
		l, err := mustOpen(t, s, layoutOptions(layout)).Inspect(t.Context(), "m")
		if err != nil || len(l.Holders) != 1 || l.Holders[0].Remaining > time.Minute+3*time.Second+machine.Lost(began) {
			t.Errorf("%s: %+v %v", layout, l, err)
		}
		stop()
	}
}

// TestOddDate promises that a service or a proxy whose clock is ahead ends no living holder's claim for clients that
// have seen earlier replies.
func TestOddDate(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			holder, other := mustOpen(t, s, layoutOptions(layout)), mustOpen(t, s, layoutOptions(layout))
			g := acquire(t, holder, mutexClaim("m", ttl))
			s.Shift(25 * time.Second)
			_, err := other.Acquire(t.Context(), mutexClaim("m", ttl))
			believes := func() bool { return holder.Info().Clock.Since(g.Since) < ttl-driver.Margin(ttl) }
			if believes() && !errors.Is(err, driver.ErrHeld) {
				t.Errorf("next to a living holder: %v", err)
			}
			next := acquire(t, other, storetest.Waiting(mutexClaim("m", ttl)))
			if believes() || next.Token <= g.Token {
				t.Errorf("let in %v after the start of a grant of %v, with token %d after %d",
					holder.Info().Clock.Since(g.Since), ttl, next.Token, g.Token)
			}
		})
	}
}

// TestOperator: the holder learns what an operator has done to its lock's object, and removes no object but its own.
func TestOperator(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, layout := range layouts {
		store := mustOpen(t, s, layoutOptions(layout))
		key := func(name string) string {
			return string(layout) + "/" + name + map[s3.Layout]string{s3.LayoutRecord: ".json",
				s3.LayoutTerraform: ".tflock"}[layout]
		}
		g := acquire(t, store, mutexClaim("deleted", time.Minute))
		s.Remove(bucket, key("deleted"))
		if err := renew(t, store, g).Err; !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: the object was deleted, and a renewal says %v", layout, err)
		}
		if err := store.Release(t.Context(), g.Claim, ""); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: a release says %v", layout, err)
		}
		// Replaced by something else: damage in our own layout, a foreign lock in the other.
		g = acquire(t, store, mutexClaim("replaced", time.Minute))
		s.Put(bucket, key("replaced"), []byte("1"))
		want := driver.ErrLost
		if layout == s3.LayoutRecord {
			want = driver.ErrCorrupt
		}
		if err := renew(t, store, g).Err; !errors.Is(err, want) {
			t.Errorf("%s: the object was replaced, and a renewal says %v", layout, err)
		}
		if err := store.Release(t.Context(), g.Claim, ""); !errors.Is(err, want) {
			t.Errorf("%s: the object was replaced, and a release says %v", layout, err)
		}
		if string(s.Get(bucket, key("replaced"))) != "1" {
			t.Errorf("%s: the operator's object is gone", layout)
		}
	}
}

// TestLargeObjects: of objects of other programs, no more is read than a record can have, and objects whose keys are no
// lock's are not looked at.
func TestLargeObjects(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := mustOpen(t, s, nil)
	s.Put(bucket, "backup.json", make([]byte, 8<<20))
	s.Put(bucket, "backup.tar", make([]byte, 8<<20))
	if _, err := store.Inspect(t.Context(), "backup"); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("an object that is none of ours: %v", err)
	}
	n := 0
	for l, err := range store.List(t.Context(), "") {
		if n++; l.Name != "backup" || !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("listed: %+v %v", l, err)
		}
	}
	if n != 1 {
		t.Errorf("%d are listed", n)
	}
}

// TestPages: a listing goes on after an empty page, and is an error if the service does not say how to go on.
func TestPages(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := mustOpen(t, s, nil)
	acquire(t, store, mutexClaim("m", time.Minute))
	list := func() (names []string, err error) {
		for l, listErr := range store.List(t.Context(), "") {
			if err = listErr; err == nil {
				names = append(names, l.Name)
			}
		}
		return names, err
	}
	s.SetFlaws(s3test.Flaws{EmptyPages: true})
	if names, err := list(); err != nil || len(names) != 1 {
		t.Errorf("after an empty page: %q, %v", names, err)
	}
	s.SetFlaws(s3test.Flaws{EmptyPages: true, NoTokens: true})
	if names, err := list(); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("without a token: %q, %v", names, err)
	}
}

// TestLongKeys: a name whose key is longer than the service accepts is refused.
func TestLongKeys(t *testing.T) {
	t.Parallel()
	store := mustOpen(t, startServer(t), &s3.Options{Prefix: strings.Repeat("p", 90) + "/"})
	acquire(t, store, mutexClaim(strings.Repeat("a", 512), time.Minute))
	if _, err := store.Acquire(t.Context(), mutexClaim(strings.Repeat("=", 512), time.Minute)); !errors.Is(err,
		driver.ErrInvalid) {
		t.Error(err)
	}
}

// TestNoTimeOfDay: no code of the store uses the time of day of this machine, so it does not matter what it is.
func TestNoTimeOfDay(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("*.go")
	if err != nil || len(sources) == 0 {
		t.Fatal(err)
	}
	for _, name := range sources {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "_test.go") && strings.Contains(string(text), "time.Now(") {
			t.Errorf("%s reads the wall clock", name)
		}
	}
}
