package etcd

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/client/v3"
)

// ReadLastToken implements sequence.TokenReporter: a token is the revision in which a node was created. It is one read.
func (t *nodeStore) ReadLastToken(ctx context.Context) (int64, error) {
	reading := t.lastReading()
	r, err := t.kv.Get(ctx, t.prefix+reservedPrefix, clientv3.WithKeysOnly())
	if err != nil {
		return 0, t.convertError(err)
	}
	t.noteRevision(reading, r.Header.Revision)
	return r.Header.Revision, nil
}

// RaiseAdvice implements sequence.TokenReporter. etcd's page on disaster recovery describes the flags.
func (t *nodeStore) RaiseAdvice(atLeast int64) string {
	return fmt.Sprintf("to raise the revisions of the cluster, take a snapshot of it, stop it, and restore the snapshot on "+
		"each member with etcdutl snapshot restore --bump-revision %d --mark-compacted", atLeast)
}
