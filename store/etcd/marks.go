package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// markFolder has the marks of the run ledger: for each run in progress a key without a value.
const markFolder = "runmark/"

func (tb *table) markKey(name string) string {
	return tb.store.prefix + reservedPrefix + markFolder + name
}

// Traits say that the table of the ledger has marks.
func (tb *table) Traits() record.Traits { return record.Traits{Marks: tb.markLeases != nil} }

// keepMarks makes this a table with marks.
//
// A mark is a key under a lease that nobody renews. Each renewal of a run puts its mark again. It may use the lease
// that an earlier one was granted, if that lasts for the TTL of the run from now on. So a client needs a lease for
// each third of a TTL, however many runs it has. One lease that is kept alive would be cheaper. But then the mark of
// a run that its client has lost would last as long as that client has other runs.
func (tb *table) keepMarks() {
	clock := tb.store.info.Clock
	if clock.Monotonic == nil {
		clock = driver.SystemClock
	}
	tb.markLeases = &driverutil.Rotation[clientv3.LeaseID]{Clock: clock, Make: tb.store.grantMarkLease}
}

// grantMarkLease grants a lease that is used for a third of a TTL, and lasts for the TTL from then on.
func (t *nodeStore) grantMarkLease(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	session, err := callServer(ctx, func(ctx context.Context) (sequence.Session, error) {
		return t.grantLease(ctx, ttl+ttl/3)
	})
	return parseLease(session.ID), err
}

// swapMarked is writeRecord with a change of the mark. A put under a lease that has expired is refused, and then
// nothing was done. That happens if the cluster was restored, or somebody has revoked the lease.
func (tb *table) swapMarked(ctx context.Context, r record.Row, put clientv3.Op) (record.Row, error) {
	if r.MarkTTL <= 0 {
		changes := []clientv3.Op{put}
		if r.Marked && r.MarkTTL == record.RemoveMark {
			changes = append(changes, clientv3.OpDelete(tb.markKey(r.Name)))
		}
		now, err := tb.writeRecord(ctx, r, changes...)
		if err == nil {
			now.Marked = r.Marked && r.MarkTTL == 0
		}
		return now, err
	}
	for try := 0; ; try++ {
		lease, err := tb.markLeases.Get(ctx, r.MarkTTL)
		if err != nil {
			return record.Row{}, markError(err)
		}
		mark := clientv3.OpPut(tb.markKey(r.Name), "", clientv3.WithLease(lease))
		now, err := tb.writeRecord(ctx, r, put, mark)
		if err == nil {
			now.Marked = true
		}
		if !errors.Is(err, sequence.ErrSessionExpired) {
			return now, err
		}
		tb.markLeases.Drop(ctx, r.MarkTTL, lease)
		if try > 0 {
			return record.Row{}, record.ErrUnsent
		}
	}
}

// markError says of an error of a grant that the swap was not sent.
func markError(err error) error {
	if driverutil.IsFinal(err) {
		return err
	}
	return fmt.Errorf("%w: %w", record.ErrUnsent, err)
}
