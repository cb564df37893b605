package etcd

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// write is one transaction on a lock, with its reply. Writes of many claims at the same time are sent together, as one
// transaction of transactions, on which the members agree once.
type write struct {
	lock            string
	addsClaim       bool // otherwise it removes one
	mayDelay        bool // it may wait for others to be sent with
	mayBeDone       bool // by a batch of which that is not known
	conditions      []clientv3.Cmp
	then, otherwise []clientv3.Op

	reply *pb.TxnResponse
}

const (
	// maxInFlight is how many requests are under way at one time.
	maxInFlight = 4
	// maxBatch is how many writes one request carries. A server takes 128 unless it is configured otherwise
	// (--max-txn-ops).
	maxBatch = 64
	// maxDelay is how long a write that may be delayed waits for others. On a lock that passes from holder to holder
	// at once, the next release nearly always comes within this time, and shares the request: half of all requests
	// are saved.
	maxDelay = time.Millisecond
	// requestTimeout limits a request that does not run under a caller's context.
	requestTimeout = 2 * time.Second
)

func (t *nodeStore) newBatcher() *driverutil.Batcher[*write] {
	return &driverutil.Batcher[*write]{
		Concurrency: maxInFlight, MaxBatch: maxBatch, MaxDelay: maxDelay, Conflicts: needsOtherBatch, Send: t.sendBatch,
	}
}

// needsOtherBatch keeps two new claims of one lock out of one transaction: all keys put in one transaction have the
// same revision, and claims with the same revision would have the same token.
func needsOtherBatch(batch []*write, next *write) bool {
	return next.addsClaim && slices.ContainsFunc(batch,
		func(o *write) bool { return o.addsClaim && o.lock == next.lock })
}

// commitWrite commits a write, alone or with others, and returns its reply.
func (t *nodeStore) commitWrite(ctx context.Context, w *write) (*pb.TxnResponse, error) {
	reading := t.lastReading()
	err := t.batcher.Do(ctx, w, w.mayDelay, func() error { return t.sendAlone(ctx, w) })
	if err != nil {
		return nil, err
	}
	t.noteRevision(reading, w.reply.Header.Revision)
	return w.reply, nil
}

// sendAlone sends one write. A removal of what a batch may have removed before succeeds only if the batch did nothing.
func (t *nodeStore) sendAlone(ctx context.Context, w *write) error {
	r, err := t.commit(ctx, w.conditions, w.then, w.otherwise)
	w.reply = (*pb.TxnResponse)(r)
	if err == nil && !r.Succeeded && w.mayBeDone && !w.addsClaim {
		return leaveOpen(rpctypes.ErrNoSpace)
	}
	return err
}

// commit sends a transaction under conditions, none of which holds any more once it was carried out. If that is not
// certain, the error says so.
func (t *nodeStore) commit(
	ctx context.Context, conditions []clientv3.Cmp, then, otherwise []clientv3.Op,
) (*clientv3.TxnResponse, error) {
	r, err := t.kv.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
	if !mayBeDone(err) {
		return r, err
	}
	// Any read makes this transaction a linearizable one.
	read := clientv3.OpGet(t.prefix+reservedPrefix, clientv3.WithCountOnly())
	now, readErr := t.kv.Txn(ctx).If(conditions...).Then(read).Else(read).Commit()
	if readErr == nil && now.Succeeded {
		return nil, err
	}
	return nil, leaveOpen(err)
}

// sendBatch sends writes as one transaction. Adds come last, so that what an add reads of its lock is the state at that
// revision.
func (t *nodeStore) sendBatch(batch []*write, done func(error)) error {
	// The order within the transaction is the order in which etcd applies it.
	slices.SortStableFunc(batch, func(a, b *write) int { return addsLast(a) - addsLast(b) })
	started := t.life.Go(func() {
		ctx, cancel := context.WithTimeout(t.life, requestTimeout)
		defer cancel()
		ops := make([]clientv3.Op, len(batch))
		for i, w := range batch {
			ops[i] = clientv3.OpTxn(w.conditions, w.then, w.otherwise)
		}
		r, err := t.kv.Txn(ctx).Then(ops...).Commit()
		// The servers have done nothing, perhaps because of one of the writes. Sent alone, each gets its own reply.
		open := mayBeDone(err)
		if open || isRefusal(err) {
			err = driverutil.ErrSendAlone
		}
		for i, w := range batch {
			w.mayBeDone = open
			if err == nil {
				w.reply = r.Responses[i].GetResponseTxn()
				w.reply.Header = r.Header
			}
		}
		done(err)
	})
	if !started {
		return driver.ErrClosed
	}
	return nil
}

// addsLast is the sort key of a write within its batch.
func addsLast(w *write) int {
	if w.addsClaim {
		return 1
	}
	return 0
}
