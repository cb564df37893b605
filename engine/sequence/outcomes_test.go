package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// faultyLink is a link some of whose next requests fail: reads, writes that do not arrive, and writes whose replies are
// lost. It may refuse all requests instead.
type faultyLink struct {
	memtree.Link
	mu                   sync.Mutex
	reads, dropped, lost int64
	afterLost            func() // called with mu held when a reply was lost
	refuses              error
}

func newFaultyLink(server *memtree.Server) *faultyLink {
	l := &faultyLink{Link: memtree.Link{Server: server}}
	l.Transport = func(_ context.Context, what string, do func() any) (any, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		isNext := func(n *int64) bool { *n--; return *n >= 0 }
		switch what {
		case "beat", "open", "end", "confirm":
			return do(), nil // they keep sessions, and change no lock
		case "list", "read", "broken":
			if l.refuses == nil && isNext(&l.reads) {
				return nil, errNoAnswer
			}
		default:
			if l.refuses == nil && isNext(&l.dropped) {
				return nil, errNoAnswer
			}
			if l.refuses == nil && isNext(&l.lost) {
				do()
				l.afterLost()
				return nil, errNoAnswer
			}
		}
		if l.refuses != nil {
			return nil, l.refuses
		}
		return do(), nil
	}
	return l
}

// fault makes the next n requests of a kind fail. If they are many, nothing tells the outcome of a write.
func (l *faultyLink) fault(kind string, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.afterLost = func() {}
	switch kind {
	case "read":
		l.reads = n
	case "dropped":
		l.dropped = n
	case "lost":
		l.lost = n
		if n > 2 {
			l.afterLost = func() { l.reads, l.dropped, l.lost = n, n, 0 }
		}
	}
}

// outcomeSteps are the calls that change a lock, and that are tried until their outcome is known. Each begins with a
// claim that is held.
var outcomeSteps = map[string]struct {
	neverReads bool
	step       func(ctx context.Context, e, other *sequence.Engine, g driver.Grant) error
}{
	"Release": {true, func(ctx context.Context, e, _ *sequence.Engine, g driver.Grant) error {
		return e.Release(ctx, g.Claim, "")
	}},
	"Release elsewhere": {false, func(ctx context.Context, _, other *sequence.Engine, g driver.Grant) error {
		return other.Release(ctx, g.Claim, g.Ref)
	}},
	"Detach": {false, func(ctx context.Context, e, _ *sequence.Engine, g driver.Grant) error {
		return e.Detach(ctx, g, time.Hour)
	}},
	"SetWeight, more": {false, func(ctx context.Context, e, _ *sequence.Engine, g driver.Grant) error {
		return e.SetWeight(ctx, g, driver.RWLimit)
	}},
	"SetWeight, less": {false, func(ctx context.Context, e, _ *sequence.Engine, g driver.Grant) error {
		return e.SetWeight(ctx, g, 1)
	}},
	"Break by force": {false, func(ctx context.Context, _, other *sequence.Engine, g driver.Grant) error {
		return other.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakForce})
	}},
	"Break": {false, func(ctx context.Context, _, other *sequence.Engine, g driver.Grant) error {
		return other.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakGraceful})
	}},
	"Break that asks": {false, func(ctx context.Context, _, other *sequence.Engine, g driver.Grant) error {
		return other.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakRequestRelease})
	}},
}

var outcomeFaults = []string{"read", "dropped", "lost"}

// testOutcomes runs a test with a step and the links of its two clients.
func testOutcomes(t *testing.T, name string, test func(t *testing.T, step func(context.Context) error, links ...*faultyLink)) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		link, otherLink := newFaultyLink(server), newFaultyLink(server)
		e, other := sequence.New(link), sequence.New(otherLink)
		defer e.Close()
		defer other.Close()
		c := rwClaim("a", 2)
		c.TTL = time.Minute
		g := storetest.Acquire(t, e, c)
		test(t, func(ctx context.Context) error { return outcomeSteps[name].step(ctx, e, other, g) }, link, otherLink)
	})
}

// TestStepsAreTriedAgain: a request that failed ends no call that changes a lock, whether it was a read or a write, and
// whether or not the write was made.
func TestStepsAreTriedAgain(t *testing.T) {
	for name := range outcomeSteps {
		for _, fault := range outcomeFaults {
			t.Run(name+", "+fault, func(t *testing.T) {
				testOutcomes(t, name, func(t *testing.T, step func(context.Context) error, links ...*faultyLink) {
					for _, l := range links {
						l.fault(fault, 2)
					}
					if err := step(t.Context()); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// TestSilentStoreEndsSteps: a call ends with its context, and otherwise when the store has been silent for 10 s. The
// outcome is uncertain if and only if a write was sent.
func TestSilentStoreEndsSteps(t *testing.T) {
	for name, s := range outcomeSteps {
		for _, fault := range outcomeFaults {
			if s.neverReads && fault == "read" {
				continue
			}
			for _, limit := range []time.Duration{time.Second, time.Hour} {
				t.Run(fmt.Sprint(name, ", ", fault, ", ", limit), func(t *testing.T) {
					testOutcomes(t, name, func(t *testing.T, step func(context.Context) error, links ...*faultyLink) {
						for _, l := range links {
							l.fault(fault, 1e9)
						}
						ctx, cancel := context.WithTimeout(t.Context(), limit)
						defer cancel()
						start := time.Now()
						err := step(ctx)
						least := min(limit, 10*time.Second)
						if took := time.Since(start); took < least || took > least+2*time.Second {
							t.Errorf("it took %v", took)
						}
						if !errors.Is(err, errNoAnswer) || errors.Is(err, context.DeadlineExceeded) != (ctx.Err() != nil) ||
							errors.Is(err, driver.ErrUncertain) != (fault != "read") {
							t.Errorf("unexpected error %v", err)
						}
					})
				})
			}
		}
	}
}

// TestRefusalOfUncertainStep: a store that refuses everything does not tell whether an earlier request took effect. If
// there was none, the refusal is the answer.
func TestRefusalOfUncertainStep(t *testing.T) {
	for name := range outcomeSteps {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, %v", name, lost), func(t *testing.T) {
				testOutcomes(t, name, func(t *testing.T, step func(context.Context) error, links ...*faultyLink) {
					for _, l := range links {
						l.fault("lost", 1)
						l.afterLost = func() { l.refuses = driver.ErrDenied }
						if !lost {
							l.afterLost()
						}
					}
					err := step(t.Context())
					if errors.Is(err, driver.ErrUncertain) != lost || !errors.Is(err, driver.ErrDenied) {
						t.Errorf("unexpected error %v", err)
					}
				})
			})
		}
	}
}

// TestExpiredReleaseWithoutReply: a release that begins when the claim has expired reports the loss, also if the reply to
// its first request does not come: that one has not removed the claim. Neither had the request by which the client has
// removed it when nobody had renewed it for its TTL.
func TestExpiredReleaseWithoutReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		link := newFaultyLink(server)
		late, next := sequence.New(link), sequence.New(&memtree.Link{Server: server})
		defer late.Close()
		defer next.Close()
		g := storetest.Acquire(t, late, mutex("m", time.Second)) // nobody renews it
		link.fault("lost", 2)
		held := storetest.Acquire(t, next, waiting(mutex("m", time.Minute)))
		err := late.Release(t.Context(), g.Claim, "")
		if loss, ok := errors.AsType[*driver.LossError](err); !ok || loss.Cause != driver.LossExpired {
			t.Errorf("a release after the claim has expired: %v", err)
		}
		storetest.Release(t, next, held.Claim)
	})
}

// TestRefusalOfWaitingClaim: whatever a store refuses a claim that has joined a lock, the outcome is uncertain, so
// that the client releases it. Before it has joined, the refusal is the answer.
func TestRefusalOfWaitingClaim(t *testing.T) {
	for _, final := range []error{driver.ErrDenied, driver.ErrUnsupported, driver.ErrInvalid, driver.ErrCorrupt} {
		synctest.Test(t, func(t *testing.T) {
			server := memtree.New()
			link := newFaultyLink(server)
			holder, waiter := sequence.New(&memtree.Link{Server: server}), sequence.New(link)
			defer holder.Close()
			defer waiter.Close()
			held := storetest.Acquire(t, holder, mutex("m", time.Minute))
			returned := make(chan error, 1)
			go func() { _, err := waiter.Acquire(t.Context(), waiting(mutex("m", time.Minute))); returned <- err }()
			synctest.Wait()
			link.mu.Lock()
			link.refuses = final
			link.mu.Unlock()
			storetest.Release(t, holder, held.Claim)
			if err := <-returned; !errors.Is(err, driver.ErrUncertain) || !errors.Is(err, final) {
				t.Errorf("%v, refused while it waits: %v", final, err)
			}
			_, err := waiter.Acquire(t.Context(), waiting(mutex("n", time.Minute)))
			if errors.Is(err, driver.ErrUncertain) || !errors.Is(err, final) {
				t.Errorf("%v, refused before it has joined: %v", final, err)
			}
			link.mu.Lock()
			link.refuses = nil
			link.mu.Unlock()
		})
	}
}

// TestDeadlineTellsSilence: the error of a wait whose context ends says since when the store has not answered. While
// the store answers it says nothing of that, even if nothing needs to be asked.
func TestDeadlineTellsSilence(t *testing.T) {
	for _, falls := range []string{"never", "during the wait", "before it"} {
		t.Run(falls, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memtree.New()
				var silent atomic.Bool
				link := &memtree.Link{Server: server}
				link.Transport = func(ctx context.Context, _ string, do func() any) (any, error) {
					if silent.Load() {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					return do(), nil
				}
				holder, waiter := sequence.New(&memtree.Link{Server: server}), sequence.New(link)
				defer holder.Close()
				defer waiter.Close()
				held := driver.Claim{Name: "a", ID: "holder", Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: time.Hour}
				storetest.Acquire(t, holder, held)
				silent.Store(falls == "before it")
				if falls == "during the wait" {
					time.AfterFunc(2*time.Second, func() { silent.Store(true) })
				}
				claim := held
				claim.ID, claim.Wait = "waiter", true
				ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
				defer cancel()
				_, err := waiter.Acquire(ctx, claim)
				var heldErr *driver.HeldError
				var silence *driver.SilentError
				isHeld, isSilent := errors.As(err, &heldErr), errors.As(err, &silence)
				if !errors.Is(err, context.DeadlineExceeded) || isHeld != (falls != "before it") || isSilent != (falls != "never") {
					t.Fatalf("%#v", err)
				}
				least, most := 9*time.Second, 9*time.Second
				if falls == "during the wait" { // a waiter looks every 2 to 5 s
					least, most = 2*time.Second, 7*time.Second
				}
				if isSilent && (silence.For < least || silence.For > most) {
					t.Errorf("silent for %v", silence.For)
				}
				silent.Store(false)
			})
		})
	}
}
