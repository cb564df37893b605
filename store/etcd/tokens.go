package etcd

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/client/v3"
)

// ReadLastToken: a token is the revision in which a node was created. It is one read.
func (t *nodeStore) ReadLastToken(ctx context.Context) (int64, func(int64) string, error) {
	reading := t.lastReading()
	r, err := t.kv.Get(ctx, t.prefix+reservedPrefix, clientv3.WithKeysOnly())
	if err != nil {
		return 0, nil, t.explainError(err)
	}
	t.noteRevision(reading, r.Header.Revision)
	return r.Header.Revision, adviseRaise, nil
}

// adviseRaise says how to raise the revisions. etcd's page on disaster recovery describes the flags.
func adviseRaise(atLeast int64) string {
	return fmt.Sprintf("to raise the revisions of the cluster, take a snapshot of it, stop it, and restore the snapshot on "+
		"each member with etcdutl snapshot restore --bump-revision %d --mark-compacted", atLeast)
}
