package sequence_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestReleaseAfterLostReply: the first request of a release gets no reply, and then the claim is found gone. If someone
// broke it by force before that request could arrive, the release reports the break; if the request itself removed it,
// the release succeeds. The same is true for a release by another process.
func TestReleaseAfterLostReply(t *testing.T) {
	for _, broken := range []bool{true, false} {
		for _, elsewhere := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				server := memtree.New()
				operator := sequence.New(&memtree.Link{Server: server})
				defer operator.Close()
				var g driver.Grant
				var tries atomic.Int64
				carry := func(_ context.Context, what string, do func() any) (any, error) {
					if what != "remove" || tries.Add(1) > 1 {
						return do(), nil
					}
					if !broken {
						do()
					} else if err := operator.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Second)
					return nil, errors.New("no answer")
				}
				holder := sequence.New(&memtree.Link{Server: server, Transport: carry})
				defer holder.Close()
				releaser := holder
				if elsewhere {
					releaser = sequence.New(&memtree.Link{Server: server, Transport: carry})
					defer releaser.Close()
				}
				g, _ = holder.Acquire(t.Context(), mutex("m", 10*time.Second))
				err := releaser.Release(t.Context(), g.Claim, g.Ref)
				var loss *driver.LossError
				if was := errors.As(err, &loss) && loss.Cause == driver.LossBroken; was != broken || !was &&
					err != nil {
					t.Errorf("broken %v, released elsewhere %v: the release returned %v", broken, elsewhere, err)
				}
			})
		}
	}
}

// TestReleaseAfterBreakNoteExpired: a release that was stopped for longer than the note of a break is kept returns an
// unknown outcome.
func TestReleaseAfterBreakNoteExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		operator := sequence.New(&memtree.Link{Server: server})
		defer operator.Close()
		var g driver.Grant
		var tries atomic.Int64
		holder := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what != "remove" || tries.Add(1) > 1 {
					return do(), nil
				}
				if err := operator.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Minute)
				return nil, errors.New("no answer")
			}})
		defer holder.Close()
		g, _ = holder.Acquire(t.Context(), mutex("m", 10*time.Second))
		if err := holder.Release(t.Context(), g.Claim, g.Ref); !errors.Is(err, driver.ErrUncertain) {
			t.Errorf("the release returned %v", err)
		}
	})
}

// TestReleaseWhileSessionEnds: the first request of a release gets no reply, and the session ends before its time. The
// outcome is unknown.
func TestReleaseWhileSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var tries atomic.Int64
		holder := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what == "remove" && tries.Add(1) == 1 {
					server.ExpireSession("")
					time.Sleep(4 * time.Second) // a keep-alive reports the end
					return nil, errors.New("no answer")
				}
				return do(), nil
			}})
		defer holder.Close()
		g, err := holder.Acquire(t.Context(), mutex("m", 9*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := holder.Release(t.Context(), g.Claim, g.Ref); !errors.Is(err, driver.ErrUncertain) {
			t.Errorf("the release returned %v", err)
		}
	})
}

// TestBreakIsReported: the renewal and the release of a claim that was broken by force report that, also in a process
// that knows only the claim's ref.
func TestBreakIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder, operator := sequence.New(&memtree.Link{Server: server}), sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		defer operator.Close()
		g, err := holder.Acquire(t.Context(), mutex("m", 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := operator.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{
			"renewed":            storetest.Renew(t, holder, g).Err,
			"renewed elsewhere":  storetest.Renew(t, operator, g).Err,
			"released":           holder.Release(t.Context(), g.Claim, g.Ref),
			"released elsewhere": operator.Release(t.Context(), g.Claim, g.Ref),
		} {
			var loss *driver.LossError
			if !errors.As(err, &loss) || loss.Cause != driver.LossBroken || loss.StaysHeld {
				t.Errorf("%s: %v", what, err)
			}
		}
		g, err = holder.Acquire(t.Context(), mutex("marked", 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := operator.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakGraceful}); err != nil {
			t.Fatal(err)
		}
		for what, s := range map[string]driver.Store{"the holder": holder, "another client": operator} {
			var loss *driver.LossError
			if err := storetest.Renew(t, s, g).Err; !errors.As(err, &loss) || loss.Cause != driver.LossBroken || !loss.StaysHeld {
				t.Errorf("a renewal by %s after a graceful break: %v", what, err)
			}
		}
	})
}

// TestReasonReachesClient: what an operator says who breaks a claim reaches its client by its next renewal, by its
// release, or as the end of its wait.
func TestReasonReachesClient(t *testing.T) {
	const reason = "alice@ops: INC-123"
	for _, mode := range []driver.BreakMode{driver.BreakForce, driver.BreakGraceful} {
		synctest.Test(t, func(t *testing.T) {
			server := memtree.New()
			holder, operator := sequence.New(&memtree.Link{Server: server}), sequence.New(&memtree.Link{Server: server})
			defer holder.Close()
			defer operator.Close()
			check := func(what string, err error) {
				var loss *driver.LossError
				if !errors.As(err, &loss) || loss.Cause != driver.LossBroken || loss.Err == nil || loss.Err.Error() != reason {
					t.Errorf("mode %v: %s: %v", mode, what, err)
				}
			}
			g, err := holder.Acquire(t.Context(), mutex("m", 10*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			waits := mutex("m", 10*time.Second)
			waits.Wait = true
			ended := make(chan error, 1)
			go func() {
				_, err := holder.Acquire(t.Context(), waits)
				ended <- err
			}()
			synctest.Wait()
			lock, err := operator.Inspect(t.Context(), "m")
			if err != nil || len(lock.Waiters) != 1 {
				t.Fatal(lock, err)
			}
			for _, ref := range []string{lock.Waiters[0].Ref, g.Ref} {
				if err := operator.Break(t.Context(), "m", ref, driver.Break{Mode: mode, Reason: reason}); err != nil {
					t.Fatal(err)
				}
			}
			check("waited", <-ended)
			check("renewed", storetest.Renew(t, holder, g).Err)
			if mode == driver.BreakForce {
				check("released elsewhere", operator.Release(t.Context(), g.Claim, g.Ref))
				check("released", holder.Release(t.Context(), g.Claim, g.Ref))
			}
		})
	}
}

// TestWithdrawAfterBreak is [TestReleaseAfterLostReply] for a claim whose add had a lost reply, too. So the claim is
// withdrawn, and a renewal that is still in flight finds it removed between two tries.
func TestWithdrawAfterBreak(t *testing.T) {
	for _, broken := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			server := memtree.New()
			operator := sequence.New(&memtree.Link{Server: server})
			defer operator.Close()
			var g driver.Grant
			var adds, tries atomic.Int64
			gone, renewed := make(chan struct{}), make(chan struct{})
			holder := sequence.New(&memtree.Link{Server: server,
				Transport: func(_ context.Context, what string, do func() any) (any, error) {
					switch {
					case what == "add" && adds.Add(1) == 1:
						return nil, errors.New("no answer")
					case what == "read":
						<-gone
					case what == "withdraw" && tries.Add(1) == 1:
						if !broken {
							do()
						} else if err := operator.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
							t.Error(err)
						}
						close(gone)
						<-renewed
						return nil, errors.New("no answer")
					}
					return do(), nil
				}})
			defer holder.Close()
			var err error
			if g, err = holder.Acquire(t.Context(), mutex("m", 10*time.Second)); err != nil {
				t.Fatal(err)
			}
			go func() { storetest.Renew(t, holder, g); close(renewed) }()
			synctest.Wait()
			err = holder.Release(t.Context(), g.Claim, g.Ref)
			var loss *driver.LossError
			if was := errors.As(err, &loss) && loss.Cause == driver.LossBroken; was != broken || !was && err != nil {
				t.Errorf("broken %v: the release returned %v", broken, err)
			}
		})
	}
}

// TestDelayedAddAfterBreak: a claim was broken by force, and a delayed add makes its node again, although a repetition
// of that add was answered before. The release removes that node, and reports the break.
func TestDelayedAddAfterBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		operator := sequence.New(&memtree.Link{Server: server})
		defer operator.Close()
		var late func() any
		holder := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what == "add" && late == nil {
					late = do
					return nil, errors.New("no answer")
				}
				return do(), nil
			}})
		defer holder.Close()
		g, err := holder.Acquire(t.Context(), mutex("m", 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := operator.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
			t.Fatal(err)
		}
		late()
		if len(server.Nodes("m")) != 1 {
			t.Fatal("the late add did not make the node")
		}
		err = holder.Release(t.Context(), g.Claim, g.Ref)
		var loss *driver.LossError
		if !errors.As(err, &loss) || loss.Cause != driver.LossBroken {
			t.Errorf("the release returned %v", err)
		}
		if left := server.LockNames(); len(left) > 0 {
			t.Errorf("claims are left on %v", left)
		}
	})
}
