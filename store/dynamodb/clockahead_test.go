package dynamodb

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestOddDate promises that a host or a proxy whose Date is ahead ends no living holder's claim: neither by one
// reply, nor when all replies are ahead from then on. One such reply has no lasting effect: tokens do not jump,
// and a dead holder is replaced in the usual time, also by a caller that only tries.
func TestOddDate(t *testing.T) {
	t.Parallel()
	const ahead, ttl = 25 * time.Second, 6 * time.Second
	for _, layout := range []string{"", "&layout=awslock"} {
		for what, shifts := range map[string][]time.Duration{"one reply": {ahead, 0}, "all replies": {ahead}} {
			t.Run(layout+what, func(t *testing.T) {
				t.Parallel()
				table, p := newTableName(), newProxy(t, sharedServer(t).Direct)
				holder, other := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, layout)), mustOpen(t,
					urlOf(table, p.Endpoint, layout))
				release(t, other, acquire(t, other, mutexClaim("before", time.Minute)).Claim)
				g := acquire(t, holder, mutexClaim("m", ttl))
				for _, shift := range shifts {
					p.Shift(shift)
					if _, err := other.Inspect(t.Context(), "m"); err != nil {
						t.Fatal(err)
					}
				}
				believes := func() bool { return holder.Info().Clock.Since(g.Since) < ttl-driver.Margin(ttl) }
				for range 5 {
					if _, err := other.Acquire(t.Context(), mutexClaim("m", ttl)); !errors.Is(err, driver.ErrHeld) &&
						believes() {
						t.Fatalf("next to a living holder: %v", err)
					}
				}
				next := acquire(t, other, waitingClaim(mutexClaim("m", ttl)))
				if believes() || next.Token <= g.Token {
					t.Errorf("let in %v after the start of a grant of %v, with token %d after %d",
						holder.Info().Clock.Since(g.Since), ttl, next.Token, g.Token)
				}
				if ahead := time.Until(time.UnixMicro(next.Token)); len(shifts) > 1 && ahead > 3*time.Second {
					t.Errorf("after one reply that was ahead a token is %v ahead", ahead)
				}
				release(t, other, next.Claim)
				g = acquire(t, holder, mutexClaim("m", ttl))
				for tries := 0; ; tries++ {
					if _, err := other.Acquire(t.Context(), mutexClaim("m", ttl)); err == nil {
						break
						// twice the promised time: the machine may be slow
					} else if late := holder.Info().Clock.Since(g.Since) - ttl; late > 10*time.Second {
						t.Fatalf("a dead holder stands %v after its TTL: %v", late, err)
					}
					time.Sleep(50 * time.Millisecond)
				}
				if believes() {
					t.Errorf("one who tries was let in %v after the start of a grant of %v",
						holder.Info().Clock.Since(g.Since), ttl)
				}
			})
		}
	}
}

// TestNoDate promises that a service whose replies do not tell the time is refused, because no claim could expire
// there.
func TestNoDate(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"Date", "Age"} {
		p := newProxy(t, sharedServer(t).Direct)
		p.AlterHeader(header)
		for _, layout := range []string{"", "&layout=awslock"} {
			if _, err := driver.Open(t.Context(), urlOf(newTableName(), p.Endpoint, layout)); !errors.Is(err,
				driver.ErrUnsupported) {
				t.Errorf("with a wrong %s, %q: %v", header, layout, err)
			}
		}
	}
}
