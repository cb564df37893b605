package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestRotation: the password and the certificates are replaced while locks are held and waited for. Nothing is lost,
// and the server refuses the old ones.
func TestRotation(t *testing.T) {
	t.Parallel()
	files := storetest.NewSecretFiles(t, "locker")
	ca, cert, key := files.ServerFiles()
	c := startCluster(t, etcdtest.Options{Members: 1, Cert: cert, Key: key,
		Args: []string{"--client-cert-auth", "--trusted-ca-file", ca}})
	m := c.Members[0]
	var user, password string
	admin := func(do func(context.Context, *clientv3.Client) error) {
		t.Helper()
		storetest.Eventually(t, "the server answers", func() bool {
			secure, err := (&driverutil.TLSOptions{CA: ca, Cert: cert, Key: key}).Open()
			fails(t, err)
			cli, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), TLS: secure.Config(), Username: user,
				Password: password, DialTimeout: time.Second, Logger: zap.NewNop()})
			if err != nil {
				return false
			}
			defer cli.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			return do(ctx, cli) == nil
		})
	}
	isThere := func(err error) error {
		if err != nil && strings.Contains(err.Error(), "already") {
			return nil
		}
		return err
	}
	for name, password := range map[string]string{"root": "root", "locker": files.OldPassword} {
		admin(func(ctx context.Context, cli *clientv3.Client) error {
			_, err := cli.UserAdd(ctx, name, password)
			return isThere(err)
		})
		admin(func(ctx context.Context, cli *clientv3.Client) error {
			_, err := cli.UserGrantRole(ctx, name, "root")
			return isThere(err)
		})
	}
	admin(func(ctx context.Context, cli *clientv3.Client) error {
		_, err := cli.AuthEnable(ctx)
		return err
	})
	user, password = "root", "root"
	storetest.Rotate(t, storetest.Rotation{Files: files, OnePassword: true,
		Accept: func() {
			admin(func(ctx context.Context, cli *clientv3.Client) error {
				_, err := cli.UserChangePassword(ctx, "locker", files.NewPassword)
				return err
			})
		},
		Reload: func() { // etcd reads whom it trusts only at its start
			m.Kill()
			fails(t, m.Start())
			admin(func(ctx context.Context, cli *clientv3.Client) error {
				_, err := cli.Get(ctx, "a")
				return err
			})
		},
		URL: func(dir string) string {
			return "etcd://locker@" + m.Endpoint + "?password-file=" + files.Password(dir) + "&" + files.TLSOptions(dir)
		}})
}

// TestDistrustPasses: a server whose certificate is not trusted, and a password that is refused, are final only as
// long as the store has never worked.
func TestDistrustPasses(t *testing.T) {
	t.Parallel()
	nodes := &nodeStore{life: driverutil.NewLifetime()}
	defer nodes.life.End()
	for _, worked := range []bool{false, true} {
		if worked {
			fails(t, nodes.explainError(nil))
		}
		for _, err := range []error{rpctypes.ErrAuthFailed, status.Error(codes.Unavailable,
			`connection error: desc = "transport: authentication handshake failed: x509: unknown authority"`)} {
			if err := nodes.explainError(err); driverutil.IsFinal(err) == worked {
				t.Errorf("it has worked %v: %v", worked, err)
			}
		}
	}
}

// TestOpenDistrusts: a server whose certificate is not trusted is told as such, also to a client that logs in first.
func TestOpenDistrusts(t *testing.T) {
	t.Parallel()
	files, others := storetest.NewSecretFiles(t, "locker"), storetest.NewSecretFiles(t, "locker")
	_, cert, key := files.ServerFiles()
	c := startCluster(t, etcdtest.Options{Members: 1, Cert: cert, Key: key})
	host := strings.TrimPrefix(c.Endpoints()[0], "https://")
	store, err := driver.Open(t.Context(), "etcd://root:root@"+host+"?"+others.TLSOptions(others.Client))
	if err == nil {
		store.Close()
	}
	if !errors.Is(err, driver.ErrDenied) || !strings.Contains(err.Error(), "no TLS connection to etcd: tls: failed to verify") {
		t.Errorf("a server of another authority: %v", err)
	}
}
