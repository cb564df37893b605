package etcd

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// table is etcd as a record.Table. Each record is one key without a lease, and its version is the key's mod revision. A
// revision belongs to one transaction of the whole cluster, so no version comes twice, even after a deletion.
type table struct {
	record.Unsupported

	store      *nodeStore
	folder     string          // before the names in keys
	life       context.Context // ends with the table, or with the store
	end        context.CancelFunc
	closeNodes func() error // ends the nodeStore, which may also serve a store of locks
	// markLeases are the leases of the marks next to the records; nil if the table keeps none.
	markLeases *driverutil.Rotation[clientv3.LeaseID]
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

// OpenLedger opens the run ledger next to the locks.
func (s *store) OpenLedger(context.Context) (driver.Ledger, error) {
	tb := newTable(s.nodes, runFolder)
	tb.keepMarks()
	return record.NewLedger(tb), nil
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

// TokenFloor is this machine's wall clock, which never goes back here.
func (tb *table) TokenFloor() int64 {
	tb.store.mu.Lock()
	defer tb.store.mu.Unlock()
	tb.store.lastClock = max(tb.store.lastClock, time.Now().UnixMicro())
	return tb.store.lastClock
}

// Clock is nil: etcd's replies have no time in them.
func (tb *table) Clock() record.Clock { return nil }

// callServer makes one request, and gives it up if it hangs.
func callServer[Answer any](ctx context.Context, do func(context.Context) (Answer, error)) (a Answer, err error) {
	err = driverutil.CallWithTimeout(ctx, requestTimeout, "etcd", func(ctx context.Context) (err error) {
		a, err = do(ctx)
		return err
	})
	return a, err
}

func newRow(name string, kv *mvccpb.KeyValue) record.Row {
	return record.Row{Name: name, Version: strconv.FormatInt(kv.ModRevision, 10), Data: kv.Value}
}

// readRow reads a record, and its mark if the table keeps marks. Its replies are for parseRow.
func (tb *table) readRow(name string) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpGet(tb.recordKey(name))}
	if tb.markLeases != nil {
		ops = append(ops, clientv3.OpGet(tb.markKey(name), clientv3.WithKeysOnly()))
	}
	return ops
}

func (tb *table) parseRow(name string, replies []*pb.ResponseOp) record.Row {
	row := record.Row{Name: name}
	if kvs := replies[0].GetResponseRange().Kvs; len(kvs) > 0 {
		row = newRow(name, kvs[0])
	}
	row.Marked = len(replies) > 1 && len(replies[1].GetResponseRange().Kvs) > 0
	return row
}

// Load is one read-only transaction.
func (tb *table) Load(ctx context.Context, name string) (record.Row, error) {
	if tb.life.Err() != nil {
		return record.Row{}, driver.ErrClosed
	}
	r, err := callServer(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return tb.store.kv.Txn(ctx).Then(tb.readRow(name)...).Commit()
	})
	if err != nil {
		return record.Row{}, tb.store.explainError(err)
	}
	return tb.parseRow(name, r.Responses), nil
}

// Swap is one transaction. If the record has another version, the same transaction returns it as it is now.
func (tb *table) Swap(ctx context.Context, r record.Row) (record.Row, error) {
	if len(r.Data) > record.MaxData {
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes", driver.ErrInvalid, len(r.Data))
	}
	put := clientv3.OpPut(tb.recordKey(r.Name), string(r.Data))
	if tb.markLeases != nil {
		return tb.swapMarked(ctx, r, put)
	}
	return tb.writeRecord(ctx, r, put)
}

// Delete is one transaction.
func (tb *table) Delete(ctx context.Context, r record.Row) error {
	now, err := tb.writeRecord(ctx, r, clientv3.OpDelete(tb.recordKey(r.Name)))
	if err != nil && now.Name != "" && now.Version == "" {
		return nil // it does not exist any more
	}
	return err
}

// writeRecord makes changes if the record, and its mark if the row has one, are as in the row.
func (tb *table) writeRecord(ctx context.Context, r record.Row, changes ...clientv3.Op) (record.Row, error) {
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
	// A key that does not exist has the version 0.
	got, err := callServer(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		unchanged := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", version)}
		if r.Marked {
			unchanged = append(unchanged, clientv3.Compare(clientv3.CreateRevision(tb.markKey(r.Name)), ">", 0))
		}
		return tb.store.commit(ctx, unchanged, changes, tb.readRow(r.Name))
	})
	if err != nil {
		return record.Row{}, tb.store.explainError(err)
	}
	if got.Succeeded {
		r.Version = strconv.FormatInt(got.Header.Revision, 10)
		return r, nil
	}
	return tb.parseRow(r.Name, got.Responses), record.ErrConflict
}

// List reads one page after the other, each with its marks. There are no more marks than records, and they are in the
// same order. So the first of them, as many as a page has records, have all marks of the page.
func (tb *table) List(ctx context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		from := tb.recordKey(prefix)
		end := clientv3.GetPrefixRangeEnd(from)
		for more := true; more; {
			if tb.life.Err() != nil {
				yield(record.Row{}, driver.ErrClosed)
				return
			}
			page, marked, err := tb.readPage(ctx, from, end)
			if err != nil {
				yield(record.Row{}, tb.store.explainError(err))
				return
			}
			for _, kv := range page.Kvs {
				row := newRow(string(kv.Key[len(tb.recordKey("")):]), kv)
				row.Marked = marked[row.Name]
				if !yield(row, nil) {
					return
				}
				// The next page starts right behind this key.
				from = string(kv.Key) + "\x00"
			}
			more = page.More
		}
	}
}

// readPage reads records from a key on, and the names of those that have a mark.
func (tb *table) readPage(
	ctx context.Context, from, end string,
) (page *pb.RangeResponse, marked map[string]bool, err error) {
	ops := []clientv3.Op{clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(pageSize))}
	if tb.markLeases != nil {
		first := tb.markKey(strings.TrimPrefix(from, tb.recordKey("")))
		last := clientv3.GetPrefixRangeEnd(tb.markKey(""))
		ops = append(ops, clientv3.OpGet(first, clientv3.WithRange(last), clientv3.WithLimit(pageSize), clientv3.WithKeysOnly()))
	}
	r, err := callServer(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return tb.store.kv.Txn(ctx).Then(ops...).Commit()
	})
	if err != nil {
		return nil, nil, err
	}
	marked = map[string]bool{}
	for _, reply := range r.Responses[1:] {
		for _, kv := range reply.GetResponseRange().Kvs {
			marked[string(kv.Key[len(tb.markKey("")):])] = true
		}
	}
	return r.Responses[0].GetResponseRange(), marked, nil
}

// Watcher notifies of each change.
func (tb *table) Watcher() record.Watcher { return record.WatcherFunc(tb.wait) }

// wait subscribes, and reads the record when the subscription exists and after every event.
func (tb *table) wait(ctx context.Context, name, version string) error {
	changed := make(chan struct{}, 1)
	watch := tb.store.hub.add(&watch{key: tb.recordKey(name), changed: func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})
	defer watch.Stop()
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
