package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver/driverutil"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
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

// login gives the client's logins the password as it is at the time: etcd's client keeps the one that it was made
// with. A login is lost when the password changes, also on a connection that stays.
//
// It also has the client forget a login that the servers do not know any more, after a restart for example. The client
// sends the token of its last login with every request, also with the one by which it logs in again. Servers before
// 3.4.28 refuse that for the token, and etcd's client would ask for another login, with the same token, forever. At
// this error it drops the token. Its next request is refused because it has no user, and so the client logs in.
func login(password *driverutil.Secret) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		if r, ok := request.(*pb.AuthenticateRequest); ok && password.IsFile() {
			request = &pb.AuthenticateRequest{Name: r.Name, Password: password.Current()}
		}
		err := call(ctx, method, request, reply, cc, opts...)
		if method == pb.Auth_Authenticate_FullMethodName && isLoginExpired(err) {
			return rpctypes.ErrGRPCAuthNotEnabled
		}
		return err
	}
}

// handshaker makes TLS connections with the certificates that the files have at the time.
type handshaker struct {
	credentials.TransportCredentials // for all but handshakes
	files                            *driverutil.TLSFiles
	failure                          *atomic.Pointer[error] // why one side distrusted the other in the last handshake, or nil
}

func newHandshaker(files *driverutil.TLSFiles) *handshaker {
	return &handshaker{credentials.NewTLS(files.Config()), files, new(atomic.Pointer[error])}
}

// ClientHandshake implements credentials.TransportCredentials.
func (h *handshaker) ClientHandshake(
	ctx context.Context, authority string, conn net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := credentials.NewTLS(h.files.Config()).ClientHandshake(ctx, authority, conn)
	if h.failure.Store(nil); isDistrust(err) {
		h.failure.Store(&err)
	}
	return conn, info, err
}

// isDistrust reports whether a handshake failed because one side does not trust the other, or speaks no TLS. Other
// failures may pass: a server that is starting, or too busy.
func isDistrust(err error) bool {
	op, _ := errors.AsType[*net.OpError](err)
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(tls.RecordHeaderError)) ||
		op != nil && op.Op == "remote error"
}

// Clone implements credentials.TransportCredentials.
func (h *handshaker) Clone() credentials.TransportCredentials {
	return &handshaker{h.TransportCredentials.Clone(), h.files, h.failure}
}

// renewLogin renews a login that has expired. Any request that is not a stream does so. Its reply is ignored: a user
// who may not read this key may still read others.
func (t *nodeStore) renewLogin(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, _ = t.kv.Get(ctx, reservedPrefix, clientv3.WithSerializable(), clientv3.WithCountOnly())
}

// isLoginExpired reports whether a reply says that the login has expired, that the users have changed since, or that
// the client has just forgotten it.
func isLoginExpired(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) ||
		errors.Is(err, rpctypes.ErrUserEmpty)
}
