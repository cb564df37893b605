package etcd

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// table is etcd as a record.Table. Each record is one key without a lease, and its version is the key's mod revision. A
// revision belongs to one transaction of the whole cluster, so no version comes twice, even after a deletion.
type table struct {
	store      *nodeStore
	folder     string          // before the names in keys
	life       context.Context // ends with the table, or with the store
	end        context.CancelFunc
	closeNodes func() error // ends the nodeStore, which may also serve a store of locks
}

// The folders of the records of a table, and of those of the run ledger.
const (
	recordFolder = "record/"
	runFolder    = "run/"
)

func newTable(t *nodeStore, folder string) *table {
	tb := &table{store: t, folder: folder, closeNodes: func() error { return nil }}
	tb.life, tb.end = context.WithCancel(t.life)
	return tb
}

// OpenLedger opens the run ledger beside the locks.
func (s *store) OpenLedger(context.Context) (driver.Ledger, error) {
	return record.NewLedger(newTable(s.nodes, runFolder)), nil
}

// tokenGap is how far the wall clocks of two clients may differ before a token could be smaller than an earlier one
// that no record shows any more.
const tokenGap = time.Minute

func (tb *table) recordKey(name string) string {
	return tb.store.prefix + reservedPrefix + tb.folder + name
}

// Info returns what the cluster promises.
func (tb *table) Info() driver.Info {
	i := tb.store.info
	if i.Clock.Monotonic == nil {
		i.Clock = driver.SystemClock
	}
	i.ExpiryClock = driver.ExpiryClockObserver
	i.TokenGap = tokenGap
	return i
}

// Now is this machine's wall clock, which never goes back here. It is good for tokens only, since etcd does not report
// a clock of its own.
func (tb *table) Now() (int64, time.Duration) {
	tb.store.mu.Lock()
	defer tb.store.mu.Unlock()
	tb.store.lastClock = max(tb.store.lastClock, time.Now().UnixMicro())
	return tb.store.lastClock, -1
}

// askOnce makes one request, and gives it up if it hangs.
func askOnce[Answer any](ctx context.Context, do func(context.Context) (Answer, error)) (a Answer, err error) {
	err = driverutil.CallWithTimeout(ctx, requestTimeout, "etcd", func(ctx context.Context) (err error) {
		a, err = do(ctx)
		return err
	})
	return a, err
}

func newRow(name string, kv *mvccpb.KeyValue) record.Row {
	return record.Row{Name: name, Version: strconv.FormatInt(kv.ModRevision, 10), Data: kv.Value}
}

// Load is one read.
func (tb *table) Load(ctx context.Context, name string) (record.Row, error) {
	if tb.life.Err() != nil {
		return record.Row{}, driver.ErrClosed
	}
	r, err := askOnce(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return tb.store.kv.Get(ctx, tb.recordKey(name))
	})
	if err != nil {
		return record.Row{}, tb.store.convertError(err)
	}
	if len(r.Kvs) == 0 {
		return record.Row{Name: name}, nil
	}
	return newRow(name, r.Kvs[0]), nil
}

// Swap is one transaction. If the record has another version, the same transaction returns it as it is now.
func (tb *table) Swap(ctx context.Context, r record.Row) (record.Row, error) {
	if len(r.Data) > record.MaxData {
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes", driver.ErrInvalid, len(r.Data))
	}
	return tb.writeRecord(ctx, r, clientv3.OpPut(tb.recordKey(r.Name), string(r.Data)))
}

// Delete is one transaction.
func (tb *table) Delete(ctx context.Context, r record.Row) error {
	now, err := tb.writeRecord(ctx, r, clientv3.OpDelete(tb.recordKey(r.Name)))
	if err != nil && now.Name != "" && now.Version == "" {
		return nil // it does not exist any more
	}
	return err
}

func (tb *table) writeRecord(ctx context.Context, r record.Row, op clientv3.Op) (record.Row, error) {
	if tb.life.Err() != nil {
		return record.Row{}, driver.ErrClosed
	}
	// A write is sent once. After a lost reply the engine loads the record, and recognizes its own claim in it.
	var version int64
	if r.Version != "" {
		var err error
		if version, err = strconv.ParseInt(r.Version, 10, 64); err != nil {
			return record.Row{}, fmt.Errorf("%w: the version %q", driver.ErrInvalid, r.Version)
		}
	}
	key := tb.recordKey(r.Name)
	// A version of 0 is that of a key that does not exist.
	got, err := askOnce(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", version)
		return tb.store.kv.Txn(ctx).If(unchanged).Then(op).Else(clientv3.OpGet(key)).Commit()
	})
	if err != nil {
		return record.Row{}, tb.store.convertError(err)
	}
	if got.Succeeded {
		r.Version = strconv.FormatInt(got.Header.Revision, 10)
		return r, nil
	}
	now := record.Row{Name: r.Name}
	if kvs := got.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		now = newRow(r.Name, kvs[0])
	}
	return now, record.ErrConflict
}

// List reads one page after the other.
func (tb *table) List(ctx context.Context, prefix string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		from := tb.recordKey(prefix)
		end := clientv3.GetPrefixRangeEnd(from)
		for more := true; more; {
			if tb.life.Err() != nil {
				yield(record.Row{}, driver.ErrClosed)
				return
			}
			r, err := askOnce(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) {
				return tb.store.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize))
			})
			if err != nil {
				yield(record.Row{}, tb.store.convertError(err))
				return
			}
			for _, kv := range r.Kvs {
				if !yield(newRow(string(kv.Key[len(tb.recordKey("")):]), kv), nil) {
					return
				}
				// The next page starts right behind this key.
				from = string(kv.Key) + "\x00"
			}
			more = r.More
		}
	}
}

// Wait subscribes, and reads the record when the subscription exists and after every event.
func (tb *table) Wait(ctx context.Context, name, version string) error {
	changed := make(chan struct{}, 1)
	defer tb.store.hub.add(&watch{key: tb.recordKey(name), changed: func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})()
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-tb.life.Done():
			return driver.ErrClosed
		}
		if now, err := tb.Load(ctx, name); err != nil || now.Version != version {
			return err
		}
	}
}

// Close ends the table's calls. The client stays open.
func (tb *table) Close() error {
	tb.end()
	return tb.closeNodes()
}
