package consul

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// table is Consul as a record.Table. Each record is one key without a session, and its version is the key's modify
// index, which is that of one write of the whole cluster. So no version comes twice, even after a deletion.
type table struct {
	record.Unsupported

	store      *nodeStore
	folder     string          // before the names in keys
	life       context.Context // ends with the table, or with the store
	end        context.CancelFunc
	closeNodes func() error // ends the nodeStore, which may also serve a store of locks
	// markSessions are the sessions of the marks next to the records; nil if the table keeps none.
	markSessions *driverutil.Rotation[string]
}

// The folders of the records of a table, of those of the run ledger, and of the ledger's marks: for each run in
// progress a key that is deleted with its session.
const (
	recordFolder = "records/"
	runFolder    = "runs/"
	markFolder   = "runmarks/"
)

// dialTimeout and requestTimeout bound how long a connection and one request may take.
const (
	dialTimeout    = 2 * time.Second
	requestTimeout = 3 * time.Second
)

// maxRecord is the size of the largest record in bytes. Consul takes 512 KiB in one transaction (txn_max_req_len), in
// which a value is written in base64, as four bytes for three.
const maxRecord = 380 << 10

func newTable(t *nodeStore, folder string) *table {
	tb := &table{store: t, folder: folder, closeNodes: func() error { return nil }}
	tb.life, tb.end = context.WithCancel(t.life)
	return tb
}

// OpenLedger opens the run ledger next to the locks.
func (s *store) OpenLedger(context.Context) (driver.Ledger, error) {
	return record.NewLedger(newLedgerTable(s.nodes)), nil
}

// newLedgerTable makes a table with marks.
//
// A mark is a key of a session that nobody renews. Each renewal of a run binds its mark to the present session again,
// which an earlier renewal may have made if it lasts for the TTL of the run from now on. So a client needs a session
// for each third of a TTL, however many runs it has. One session that is renewed would be cheaper. But then the mark of
// a run that its client has lost would last as long as that client has other runs.
func newLedgerTable(t *nodeStore) *table {
	tb := newTable(t, runFolder)
	tb.markSessions = &driverutil.Rotation[string]{Clock: t.opts.Clock,
		Make: func(ctx context.Context, ttl time.Duration) (id string, err error) {
			err = tb.callServer(ctx, func(ctx context.Context) error {
				s, err := t.OpenSession(ctx, min(ttl+ttl/3, maxSessionTTL))
				id = s.ID
				return err
			})
			return id, err
		}}
	return tb
}

// Traits say that the table of the ledger has marks.
func (tb *table) Traits() record.Traits {
	return record.Traits{MaxRecord: maxRecord, ListsInOrder: true, Marks: tb.markSessions != nil}
}

// Info returns what the servers promise.
func (tb *table) Info() driver.Info {
	i := tb.store.info
	i.ExpiryClock = driver.ExpiryClockObserver
	i.TokenGap = time.Minute // how far the wall clocks of two clients may differ
	return i
}

func (tb *table) recordKey(name string) string {
	return tb.store.opts.Prefix + reservedFolder + tb.folder + encodeName(name)
}

func (tb *table) markKey(name string) string {
	return tb.store.opts.Prefix + reservedFolder + markFolder + encodeName(name)
}

// Keys names the key of a record, for people.
func (tb *table) Keys(name string) []string { return []string{tb.recordKey(name)} }

// callServer makes one request, and gives it up if it hangs.
func (tb *table) callServer(ctx context.Context, request func(context.Context) error) error {
	if tb.life.Err() != nil {
		return driver.ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(tb.life, cancel)()
	err := driverutil.CallWithTimeout(ctx, requestTimeout, "Consul", request)
	if err != nil && tb.life.Err() != nil {
		return driver.ErrClosed
	}
	return err
}

// commit sends one transaction.
func (tb *table) commit(ctx context.Context, ops ...*api.TxnOp) (pairs api.KVPairs, ok bool, err error) {
	err = tb.callServer(ctx, func(ctx context.Context) (err error) {
		pairs, ok, err = tb.store.commit(ctx, ops...)
		return err
	})
	return pairs, ok, err
}

// readRow reads a record, and its mark if the table keeps marks.
func (tb *table) readRow(name string) []*api.TxnOp {
	ops := []*api.TxnOp{op(api.KVGetOrEmpty, tb.recordKey(name))}
	if tb.markSessions != nil {
		ops = append(ops, op(api.KVGetOrEmpty, tb.markKey(name)))
	}
	return ops
}

// parseRow finds a record among the results of readRow.
func (tb *table) parseRow(name string, pairs api.KVPairs) record.Row {
	row := record.Row{Name: name}
	if kv := findPair(pairs, tb.recordKey(name)); kv.ModifyIndex > 0 {
		row.Version, row.Data = strconv.FormatUint(kv.ModifyIndex, 10), kv.Value
	}
	row.Marked = tb.markSessions != nil && findPair(pairs, tb.markKey(name)).Session != ""
	return row
}

// Load is one consistent read.
func (tb *table) Load(ctx context.Context, name string) (record.Row, error) {
	pairs, _, err := tb.commit(ctx, tb.readRow(name)...)
	if err != nil {
		return record.Row{}, err
	}
	return tb.parseRow(name, pairs), nil
}

// checkRow checks that a record, and its mark if it has one, are as in the row.
func (tb *table) checkRow(r record.Row) (ops []*api.TxnOp, err error) {
	var index int64
	if r.Version != "" {
		if index, err = strconv.ParseInt(r.Version, 10, 64); err != nil {
			return nil, fmt.Errorf("%w: the version %q", driver.ErrInvalid, r.Version)
		}
	}
	ops = append(ops, checkIndex(tb.recordKey(r.Name), index))
	if r.Marked {
		ops = append(ops, op(api.KVGet, tb.markKey(r.Name))) // which fails if there is none
	}
	return ops, nil
}

// Swap is one transaction. The flags of the key are a random number: Consul gives a key that is written as it was no
// new index.
func (tb *table) Swap(ctx context.Context, r record.Row) (record.Row, error) {
	if len(r.Data) > maxRecord {
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes", driver.ErrInvalid, len(r.Data))
	}
	ops, err := tb.checkRow(r)
	if err != nil {
		return record.Row{}, err
	}
	var flags [8]byte
	_, _ = rand.Read(flags[:]) // it never fails
	ops = append(ops, op(api.KVSet, tb.recordKey(r.Name), withValue(r.Data),
		func(o *api.KVTxnOp) { o.Flags = binary.LittleEndian.Uint64(flags[:]) }))
	if r.MarkTTL > 0 {
		return tb.swapMarked(ctx, r, ops)
	}
	if r.MarkTTL == record.RemoveMark && r.Marked {
		ops = append(ops, op(api.KVDelete, tb.markKey(r.Name)))
		r.Marked = false
	}
	return tb.writeRow(ctx, r, ops)
}

// swapMarked also writes the mark. It deletes the earlier one, which belongs to another session. If the session has
// ended, nothing was done: somebody has destroyed it, or the servers were restored.
func (tb *table) swapMarked(ctx context.Context, r record.Row, ops []*api.TxnOp) (record.Row, error) {
	for try := 0; ; try++ {
		session, err := tb.markSessions.Get(ctx, r.MarkTTL)
		if err != nil && !driverutil.IsFinal(err) {
			err = fmt.Errorf("%w: %w", record.ErrUnsent, err)
		}
		if err != nil {
			return record.Row{}, err
		}
		mark := tb.markKey(r.Name)
		r.Marked = true
		now, err := tb.writeRow(ctx, r, append(ops, op(api.KVDelete, mark), op(api.KVLock, mark, bySession(session))))
		if !errors.Is(err, sequence.ErrSessionExpired) {
			return now, err
		}
		tb.markSessions.Drop(ctx, r.MarkTTL, session)
		if try > 0 {
			return record.Row{}, record.ErrUnsent
		}
	}
}

// writeRow commits a change of a record.
func (tb *table) writeRow(ctx context.Context, r record.Row, ops []*api.TxnOp) (record.Row, error) {
	pairs, ok, err := tb.commit(ctx, ops...)
	switch {
	case err != nil:
		return record.Row{}, err
	case !ok:
		return record.Row{}, record.ErrConflict
	}
	r.Version = strconv.FormatUint(findPair(pairs, tb.recordKey(r.Name)).ModifyIndex, 10)
	return r, nil
}

// Delete is one transaction, and a read if the record has another version or does not exist any more.
func (tb *table) Delete(ctx context.Context, r record.Row) error {
	ops, err := tb.checkRow(r)
	if err != nil {
		return err
	}
	_, ok, err := tb.commit(ctx, append(ops, op(api.KVDelete, tb.recordKey(r.Name)))...)
	if err != nil || ok {
		return err
	}
	if now, err := tb.Load(ctx, r.Name); err != nil || now.Version == "" {
		return err
	}
	return record.ErrConflict
}

// List reads the keys, and then the records with 32 per request: Consul has no pages. It returns them in the order of
// the keys.
func (tb *table) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	last := encodeName(after)
	return tb.list(ctx, encodePrefix(prefix), func(name string) bool {
		return strings.HasPrefix(name, prefix) && (after == "" || encodeName(name) > last)
	})
}

// list returns the rows that are wanted: all keys in one request, and then the rows in transactions of as many
// keys as Consul allows.
func (tb *table) list(ctx context.Context, start string, isWanted func(name string) bool) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		folder := tb.store.opts.Prefix + reservedFolder + tb.folder
		var keys []string
		err := tb.callServer(ctx, func(ctx context.Context) (err error) {
			keys, _, err = tb.store.client.KV().Keys(folder+start, "",
				(&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
			return tb.store.explainError(err)
		})
		if err != nil {
			yield(record.Row{}, err)
			return
		}
		var names []string
		for _, key := range keys {
			if name, ok := decodeName(key[len(folder):]); ok && isWanted(name) {
				names = append(names, name)
			}
		}
		for some := range slices.Chunk(names, maxOps/2) {
			var ops []*api.TxnOp
			for _, name := range some {
				ops = append(ops, tb.readRow(name)...)
			}
			pairs, _, err := tb.commit(ctx, ops...)
			if err != nil {
				yield(record.Row{}, err)
				return
			}
			for _, name := range some {
				if row := tb.parseRow(name, pairs); row.Version != "" && !yield(row, nil) {
					return
				}
			}
		}
	}
}

// Watcher notifies of each change.
func (tb *table) Watcher() record.Watcher { return record.WatcherFunc(tb.wait) }

// wait makes a blocking query.
func (tb *table) wait(ctx context.Context, name, version string) error {
	look := func(ctx context.Context, o *api.QueryOptions) (bool, uint64, error) {
		kv, meta, err := tb.store.client.KV().Get(tb.recordKey(name), o.WithContext(ctx))
		if err != nil {
			return false, 0, err
		}
		var now string
		if kv != nil {
			now = strconv.FormatUint(kv.ModifyIndex, 10)
		}
		return now != version, meta.LastIndex, nil
	}
	changed, stop := tb.store.watchForWaiter(look)
	defer stop()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-tb.life.Done():
		return driver.ErrClosed
	}
}

// Close ends the table's calls.
func (tb *table) Close() error {
	tb.end()
	return tb.closeNodes()
}
