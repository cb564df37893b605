package zookeeper

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// Change replaces a node's payload. It is sent alone and not in a batch, where a version that does not fit would refuse
// the writes of others as well. After a lost reply the caller reads the node: its version tells whether the change was
// made.
func (t *nodeStore) Change(
	ctx context.Context, name string, n sequence.Node, payload sequence.Payload, _ sequence.Among,
) (sequence.Node, bool, error) {
	data, err := json.Marshal(payload)
	if err != nil {
		return n, false, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	path := t.pathOf(name) + "/" + n.Key
	set := zk.SetData(path, data, int32(n.Version-1))
	if err := t.write(ctx, &zk.Write{Calls: []*zk.Call{set}, Alone: true}); err != nil {
		return n, false, t.explainError(err, path)
	}
	stat, err := set.Stat()
	switch err {
	case nil:
		n.Version, n.Payload = int64(stat.Version)+1, payload
		t.cacheNode(path, n)
		return n, true, nil
	case zk.CodeBadVersion, zk.CodeNoNode:
		return n, false, nil
	}
	return n, false, t.explainError(err, path)
}
