package etcd

import (
	"context"
	"encoding/json"

	"github.com/holdfast-go/holdfast/engine/sequence"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Remove compares the token: a key is made again after its removal, by us and by foreign clients. So a Remove that is
// repeated, or arrives late, deletes nothing that it should not. To read the whole lock costs every member of the
// cluster more than to read the next key.
func (t *nodeStore) Remove(
	ctx context.Context, name string, n sequence.Node, then sequence.Then,
) (bool, sequence.Snapshot, error) {
	key := t.lockDir(name) + n.Key
	remove := write{lock: name, then: []clientv3.Op{clientv3.OpDelete(key)},
		conditions: []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", n.Token)}}
	if n.Version != 0 {
		remove.conditions = append(remove.conditions, clientv3.Compare(clientv3.ModRevision(key), "=", n.Version))
	}
	switch {
	case then.Next != "":
		remove.then = append(remove.then, clientv3.OpGet(t.lockDir(name)+then.Next))
	case then.List:
		remove.then = append(remove.then, t.readLock(name))
	}
	r, err := t.commitWrite(ctx, &remove)
	if err != nil || !r.Succeeded || r.Responses[0].GetResponseDeleteRange().Deleted == 0 {
		return false, sequence.Snapshot{}, t.explainError(err)
	}
	if len(remove.then) == 1 {
		return true, sequence.Snapshot{}, nil
	}
	return true, t.newSnapshot(name, r.Responses[1].GetResponseRange().Kvs, r.Header.Revision), nil
}

// BreakNode is one transaction, after the grant of a lease for the note. The note expires with that lease, and none is
// left if the node did not exist. It cannot be bound to the lease of the claim: the holder may end that, or let it
// expire, before it asks what became of its release.
func (t *nodeStore) BreakNode(ctx context.Context, name string, n sequence.Node, reason string) (bool, error) {
	note, err := json.Marshal(breakNote{name, reason})
	if err != nil {
		return false, err
	}
	lease, err := t.grantLease(ctx, sequence.BreakNoteTime(n.TTL))
	if err != nil {
		return false, err
	}
	key := t.lockDir(name) + n.Key
	putNote := clientv3.OpPut(t.breakNoteKey(n.ID), string(note), clientv3.WithLease(parseLease(lease.ID)))
	r, err := t.commit(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", n.Token)},
		[]clientv3.Op{clientv3.OpDelete(key), putNote}, nil)
	if err == nil && !r.Succeeded {
		_ = t.EndSession(ctx, lease.ID) // if it fails, the lease expires
		return false, nil
	}
	return err == nil, t.explainError(err)
}

// breakNote is the value of a note.
type breakNote struct {
	Lock   string `json:"lock"`
	Reason string `json:"reason,omitempty"`
}

// ReadBreakNote is one read. A note whose value cannot be read is one, without a reason.
func (t *nodeStore) ReadBreakNote(ctx context.Context, _ string, n sequence.Node) (bool, string, error) {
	r, err := t.kv.Get(ctx, t.breakNoteKey(n.ID))
	if err != nil || len(r.Kvs) == 0 {
		return false, "", t.explainError(err)
	}
	var note breakNote
	_ = json.Unmarshal(r.Kvs[0].Value, &note)
	return true, note.Reason, nil
}
