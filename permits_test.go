package holdfast

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/driver"
)

// TestLeasePermits: a lease of a semaphore has permits with numbers, which stay the same and are free for others when
// it ends. Other leases have none, and say why.
func TestLeasePermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := bubbleMemory()
		c, other := newClient(t, memory.Open(), nil), newClient(t, memory.Open(), nil)
		acquire := func(c *Client, limit, weight int64) *Lease {
			t.Helper()
			l, err := c.Semaphore("s", limit, nil).Acquire(t.Context(), weight)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		wantPermits := func(l *Lease, want ...int64) {
			t.Helper()
			if got, err := l.Permits(); err != nil || !slices.Equal(got, want) {
				t.Errorf("want %v, got %v, %v", want, got, err)
			}
		}
		release := func(leases ...*Lease) {
			t.Helper()
			for _, l := range leases {
				if err := l.Release(); err != nil {
					t.Error(err)
				}
			}
		}
		a, b := acquire(c, 4, 1), acquire(other, 4, 2)
		wantPermits(a, 0)
		wantPermits(b, 1, 2)
		if got, _ := b.Permits(); len(got) == 2 {
			got[0] = 7 // the caller's own
		}
		release(a)
		d := acquire(c, 4, 2)
		wantPermits(b, 1, 2)
		wantPermits(d, 0, 3)
		release(b, d)
		wantPermits(d, 0, 3) // as its token

		heavy := acquire(c, driver.MaxLimit, driver.MaxPermits+1)
		_, err := heavy.Permits()
		wantIs(t, err, ErrUnsupported)
		wantPermits(acquire(other, driver.MaxLimit, 1), 0)
		_, err = mustLock(t, c, "m", nil).Permits()
		wantIs(t, err, ErrUnsupported)
		if !c.Info().Permits {
			t.Error("Info says that permits have no numbers")
		}
	})
}
