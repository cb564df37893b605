package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// openStream opens a stream under the login that stands. etcd's client would log in anew for each, with a password: that costs the
// cluster a write and, to check the password, a tenth of a second of a processor; and a keep-alive is a stream.
func openStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(ctx, desc, cc, method, opts...)
}

// login renews a login that has expired, as any request that is no stream does. What it answers is no matter: a user who may not
// read this key may read others.
func (t *tree) login(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	_, _ = t.kv.Get(ctx, own, clientv3.WithSerializable(), clientv3.WithCountOnly())
}

// expired reports whether an answer says that the login has, or that the users have changed since.
func expired(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}
