package consul

import (
	"context"
	"fmt"

	"github.com/hashicorp/consul/api"
)

// ReadLastToken: a token is the index at which a key was made. Of a key that does not
// exist, Consul returns the index of the last change of any key.
func (t *nodeStore) ReadLastToken(ctx context.Context) (int64, func(int64) string, error) {
	_, meta, err := t.client.KV().Get(t.opts.Prefix+reservedFolder+"none",
		(&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err != nil {
		return 0, nil, t.explainError(err)
	}
	return int64(meta.LastIndex), adviseRaise, nil
}

// adviseRaise says how to raise the index.
func adviseRaise(atLeast int64) string {
	return fmt.Sprintf("each write to Consul raises its index by one: write to any key, for example with consul kv put, "+
		"until its ModifyIndex is %d or more", atLeast)
}
