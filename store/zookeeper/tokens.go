package zookeeper

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// ReadLastToken: a token is the transaction that created a node, and each answer of a
// server has the last transaction that it knows of.
func (t *nodeStore) ReadLastToken(ctx context.Context) (last int64, advise func(int64) string, err error) {
	err = callServer(ctx, func(ctx context.Context) error {
		calls, _, err := t.read(ctx, true, func() []*zk.Call { return []*zk.Call{zk.Exists(t.root)} })
		if err == nil {
			last = calls[0].Zxid
		}
		return err
	})
	if err != nil {
		return 0, nil, t.explainError(err, t.root)
	}
	return last, adviseRaise, nil
}

// adviseRaise says how to raise the transaction numbers. The upper 32 bits of a transaction's number are the epoch of
// the leader, and a new leader's epoch is larger by one than the largest epoch that one of a majority has accepted
// (ZooKeeper Internals, "Leader Activation").
func adviseRaise(atLeast int64) string {
	return fmt.Sprintf("to raise the transaction numbers of the ensemble, stop all servers, write %d into the file "+
		"version-2/acceptedEpoch in the data directory of each, and start them again (a standalone server has no epoch: start "+
		"it as an ensemble of one, with standaloneEnabled=false and a line server.1)", (atLeast-1)>>32)
}
