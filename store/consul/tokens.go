package consul

import (
	"context"
	"fmt"

	"github.com/hashicorp/consul/api"
)

// ReadLastToken implements sequence.TokenReporter: a token is the index at which a key was made. Of a key that does not
// exist, Consul returns the index of the last change of any key.
func (t *nodeStore) ReadLastToken(ctx context.Context) (int64, error) {
	_, meta, err := t.client.KV().Get(t.opts.Prefix+reservedFolder+"none",
		(&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err != nil {
		return 0, t.convertError(err)
	}
	return int64(meta.LastIndex), nil
}

// RaiseAdvice implements sequence.TokenReporter.
func (t *nodeStore) RaiseAdvice(atLeast int64) string {
	return fmt.Sprintf("each write to Consul raises its index by one: write to any key, for example with consul kv put, "+
		"until its ModifyIndex is %d or more", atLeast)
}
