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

// table is etcd as a record.Table: a key a record, without a lease; its version is the mod revision.
type table struct {
	t    *tree
	life context.Context // ends with the table, or with the store
	end  context.CancelFunc
}

func newTable(t *tree) *table {
	tb := &table{t: t}
	tb.life, tb.end = context.WithCancel(t.life)
	return tb
}

// tokenGap is how far the wall clocks of two clients may be apart before a token could fall that is made without a record
// of the one before.
const tokenGap = time.Minute

func (tb *table) key(name string) string { return tb.t.prefix + own + "record/" + name }

// Info promises what the cluster does.
func (tb *table) Info() driver.Info {
	i := tb.t.info
	if i.Clock.Monotonic == nil {
		i.Clock = driver.SystemClock
	}
	i.ExpiryClock = driver.ExpiryClockObserver
	i.TokenGap = tokenGap
	return i
}

// Now is this machine's wall clock, made never to fall, and good for tokens only: etcd does not tell its own.
func (tb *table) Now() (int64, time.Duration) {
	tb.t.mu.Lock()
	defer tb.t.mu.Unlock()
	tb.t.clock = max(tb.t.clock, time.Now().UnixMicro())
	return tb.t.clock, -1
}

// ask makes one request, which is given up if it hangs.
func ask[Answer any](ctx context.Context, do func(context.Context) (Answer, error)) (a Answer, err error) {
	err = driverutil.CallWithTimeout(ctx, answerTime, "etcd", func(ctx context.Context) (err error) {
		a, err = do(ctx)
		return err
	})
	return a, err
}

func row(name string, kv *mvccpb.KeyValue) record.Row {
	return record.Row{Name: name, Version: strconv.FormatInt(kv.ModRevision, 10), Data: kv.Value}
}

// Load is one read.
func (tb *table) Load(ctx context.Context, name string) (record.Row, error) {
	if tb.life.Err() != nil {
		return record.Row{}, driver.ErrClosed
	}
	r, err := ask(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) { return tb.t.kv.Get(ctx, tb.key(name)) })
	if err != nil {
		return record.Row{}, tb.t.fault(err)
	}
	if len(r.Kvs) == 0 {
		return record.Row{Name: name}, nil
	}
	return row(name, r.Kvs[0]), nil
}

// Swap is one transaction, which brings the record as it is now if that is another.
func (tb *table) Swap(ctx context.Context, r record.Row) (record.Row, error) {
	if len(r.Data) > record.MaxData {
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes", driver.ErrInvalid, len(r.Data))
	}
	return tb.write(ctx, r, clientv3.OpPut(tb.key(r.Name), string(r.Data)))
}

// Delete is one transaction.
func (tb *table) Delete(ctx context.Context, r record.Row) error {
	now, err := tb.write(ctx, r, clientv3.OpDelete(tb.key(r.Name)))
	if err != nil && now.Name != "" && now.Version == "" {
		return nil // there is none
	}
	return err
}

func (tb *table) write(ctx context.Context, r record.Row, op clientv3.Op) (record.Row, error) {
	if tb.life.Err() != nil {
		return record.Row{}, driver.ErrClosed
	}
	var version int64
	if r.Version != "" {
		var err error
		if version, err = strconv.ParseInt(r.Version, 10, 64); err != nil {
			return record.Row{}, fmt.Errorf("%w: the version %q", driver.ErrInvalid, r.Version)
		}
	}
	key := tb.key(r.Name)
	got, err := ask(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return tb.t.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", version)).Then(op).Else(clientv3.OpGet(key)).Commit()
	})
	if err != nil {
		return record.Row{}, tb.t.fault(err)
	}
	if got.Succeeded {
		r.Version = strconv.FormatInt(got.Header.Revision, 10)
		return r, nil
	}
	now := record.Row{Name: r.Name}
	if kvs := got.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		now = row(r.Name, kvs[0])
	}
	return now, record.ErrConflict
}

// List reads page by page.
func (tb *table) List(ctx context.Context, prefix string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		from := tb.key(prefix)
		end := clientv3.GetPrefixRangeEnd(from)
		for more := true; more; {
			if tb.life.Err() != nil {
				yield(record.Row{}, driver.ErrClosed)
				return
			}
			r, err := ask(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) {
				return tb.t.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page))
			})
			if err != nil {
				yield(record.Row{}, tb.t.fault(err))
				return
			}
			for _, kv := range r.Kvs {
				if !yield(row(string(kv.Key[len(tb.key("")):]), kv), nil) {
					return
				}
				from = string(kv.Key) + "\x00"
			}
			more = r.More
		}
	}
}

// Wait subscribes, looks when the subscription stands, and after every event.
func (tb *table) Wait(ctx context.Context, name, version string) error {
	changed := make(chan struct{}, 1)
	defer tb.t.hub.watch(&watch{key: tb.key(name), changed: func() {
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

// Close leaves the connection to the store that it belongs to.
func (tb *table) Close() error {
	tb.end()
	return nil
}
