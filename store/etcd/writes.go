package etcd

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// write is one transaction on a lock, and what came of it. What many claims add and remove at a time goes together, as one
// transaction of transactions, on which the members agree once.
type write struct {
	lock            string
	adds            bool // a claim; else it removes one
	patient         bool // it may wait for another to go with
	when            []clientv3.Cmp
	then, otherwise []clientv3.Op

	reply *pb.TxnResponse
}

const (
	// abreast is how many requests are under way at a time.
	abreast = 4
	// together is how many writes go in one request; a server takes 128 unless it is told otherwise.
	together = 64
	// linger is how long a patient write waits for another one to go with. On a lock that is passed on at once the next
	// release is nearly always there by then, and so half of all requests are saved.
	linger = time.Millisecond
	// answerTime is how long a request that is not a caller's own may take.
	answerTime = 2 * time.Second
)

func (t *tree) newLane() *driverutil.Batcher[*write] {
	return &driverutil.Batcher[*write]{Concurrency: abreast, MaxBatch: together, MaxDelay: linger, Conflicts: sameToken, Send: t.send}
}

// sameToken: all that is put in one transaction has the same revision, so no lock gets two claims by one.
func sameToken(together []*write, next *write) bool {
	return next.adds && slices.ContainsFunc(together, func(o *write) bool { return o.adds && o.lock == next.lock })
}

// write gives the answer to a write.
func (t *tree) write(ctx context.Context, w *write) (*pb.TxnResponse, error) {
	before := t.reading()
	err := t.lane.Do(ctx, w, w.patient, func() error {
		r, err := t.kv.Txn(ctx).If(w.when...).Then(w.then...).Else(w.otherwise...).Commit()
		w.reply = (*pb.TxnResponse)(r)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.saw(before, w.reply.Header.Revision)
	return w.reply, nil
}

// send sends writes together. A claim comes last, so that what it sees of its lock is how the lock stands at that revision.
func (t *tree) send(some []*write, landed func(error)) error {
	slices.SortStableFunc(some, func(a, b *write) int { return rank(a) - rank(b) })
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.life.Err() != nil {
		return driver.ErrClosed
	}
	t.work.Go(func() {
		ctx, cancel := context.WithTimeout(t.life, answerTime)
		defer cancel()
		ops := make([]clientv3.Op, len(some))
		for i, w := range some {
			ops[i] = clientv3.OpTxn(w.when, w.then, w.otherwise)
		}
		r, err := t.kv.Txn(ctx).Then(ops...).Commit()
		if refused(err) {
			err = driverutil.ErrSendAlone
		}
		for i, w := range some {
			if err == nil {
				w.reply = r.Responses[i].GetResponseTxn()
				w.reply.Header = r.Header
			}
		}
		landed(err)
	})
	return nil
}

func rank(w *write) int {
	if w.adds {
		return 1
	}
	return 0
}
