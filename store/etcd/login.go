package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// openStream opens a stream with the login that the client has. etcd's client would otherwise log in again, with the
// password, for every stream, and each keep-alive is a stream. A login costs the cluster a write, and a tenth of a
// second of CPU to check the password.
func openStream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return open(ctx, desc, cc, method, opts...)
}

// renewLogin renews a login that has expired. Any request that is not a stream does so. Its reply is ignored: a user
// who may not read this key may still read others.
func (t *nodeStore) renewLogin(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, _ = t.kv.Get(ctx, reservedPrefix, clientv3.WithSerializable(), clientv3.WithCountOnly())
}

// isLoginExpired reports whether a reply says that the login has expired, or that the users have changed since.
func isLoginExpired(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}
