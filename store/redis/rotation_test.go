package redis

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/storetest"

	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestRotation: the password and the certificates are replaced while locks are held and waited for. Nothing is lost,
// and the server refuses the old ones.
func TestRotation(t *testing.T) {
	t.Parallel()
	port, err := servertest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	files := storetest.NewSecretFiles(t, "locker")
	ca, cert, key := files.ServerFiles()
	server := startServer(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca)
	r := rotatePassword(t, files, server)
	r.URL = func(dir string) string {
		return "rediss://locker@127.0.0.1:" + port + "?password-file=" + files.Password(dir) + "&" + files.TLSOptions(dir)
	}
	r.Reload = func() {
		sendCommand(t, server, "CONFIG", "SET", "tls-ca-cert-file", ca, "tls-cert-file", cert, "tls-key-file", key)
	}
	storetest.Rotate(t, r)
}

// TestGroupRotation: the password is replaced on the servers behind Sentinels, which have another one, on those of a
// Cluster, and on those of a Redlock.
func TestGroupRotation(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]func(t *testing.T) (g *redistest.Group, url string){
		"sentinel": func(t *testing.T) (*redistest.Group, string) {
			g := mustStart(t)(redistest.Replicated(t.Context()))
			for _, s := range g.Sentinels {
				sendCommand(t, s, "ACL", "SETUSER", "finder", "on", ">hunter2", "~*", "&*", "+@all")
			}
			return g, "redis+sentinel://locker@" + g.SentinelAddrs()[0] + "/" + redistest.MasterName +
				"?sentinel-user=finder&sentinel-password=hunter2&addrs=" + strings.Join(g.SentinelAddrs()[1:], ",")
		},
		"cluster": func(t *testing.T) (*redistest.Group, string) {
			g := mustStart(t)(redistest.Cluster(t.Context()))
			return g, "redis+cluster://locker@" + g.Addrs()[0] + "?addrs=" + strings.Join(g.Addrs()[1:], ",")
		},
		"redlock": func(t *testing.T) (*redistest.Group, string) {
			g := mustStart(t)(redistest.Independent(3))
			return g, "redlock://locker@" + g.Addrs()[0] + "?addrs=" + strings.Join(g.Addrs()[1:], ",")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, url := group(t)
			files := storetest.NewSecretFiles(t, "locker")
			r := rotatePassword(t, files, g.Servers...)
			r.URL = func(dir string) string { return url + "&password-file=" + files.Password(dir) }
			storetest.Rotate(t, r)
		})
	}
}

// rotatePassword makes a user with the old password on servers, and says how it gets the new one.
func rotatePassword(t *testing.T, files *storetest.SecretFiles, servers ...*redistest.Server) storetest.Rotation {
	setUser := func(rules ...string) {
		for _, s := range servers {
			sendCommand(t, s, append([]string{"ACL", "SETUSER", "locker"}, rules...)...)
		}
	}
	setUser("on", ">"+files.OldPassword, "~*", "&*", "+@all")
	return storetest.Rotation{Files: files, Accept: func() { setUser(">" + files.NewPassword) },
		Refuse: func() { setUser("<" + files.OldPassword) }}
}
