// Package kubernetestest runs a server of Kubernetes' API for leases, over an etcd, for tests.
package kubernetestest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

const packagePath = "github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"

const (
	// Namespace is the only one in which a client may do something that has a token of its verbs.
	Namespace = "default"
	// AllowAll is the token of a client that may do everything.
	AllowAll = "all"
)

// AllowVerbs makes the token of a client that may do only this with leases in the namespace.
func AllowVerbs(verbs ...string) string { return "may." + strings.Join(verbs, ".") }

// startTime bounds how long the servers may take to answer.
const startTime = 3 * time.Minute

// Server builds the server, if that was not done before, and returns the path of the binary. See
// [servertest.BuildTool]. It takes minutes once.
var Server = sync.OnceValues(func() (string, error) {
	return servertest.BuildTool(packagePath, "leaseserver", "-ldflags=-s -w", "./leaseserver")
})

// Elector builds a program that takes part in a leader election of client-go, if that was not done before, and
// returns the path of the binary. Its comment says how it is used.
var Elector = sync.OnceValues(func() (string, error) {
	return servertest.BuildTool(packagePath, "elector", "-ldflags=-s -w", "./elector")
})

// Cluster is an API server and its etcd, each a process of its own.
type Cluster struct {
	API, Etcd *servertest.Server
	dir       string
	ca        *x509.CertPool
}

// Start starts a cluster. On its first call on a machine it builds the server.
func Start() (*Cluster, error) {
	program, err := Server()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "holdfast-kubernetes-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	if err := c.start(program); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// start starts both servers.
func (c *Cluster) start(program string) error {
	var ports [3]string
	for i := range ports {
		var err error
		if ports[i], err = servertest.FreePort(); err != nil {
			return err
		}
	}
	etcd, peer := "127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	data := filepath.Join(c.dir, "etcd")
	c.Etcd = &servertest.Server{Name: "etcd", Endpoint: etcd, Dir: data, Args: []string{program, "etcd",
		"--data-dir", data, "--listen-client-urls", "http://" + etcd, "--advertise-client-urls", "http://" + etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
		"--log-level", "error", "--unsafe-no-fsync"}}
	api := filepath.Join(c.dir, "api")
	if err := os.Mkdir(api, 0o700); err != nil {
		return err
	}
	c.API = &servertest.Server{Name: "api", Endpoint: "127.0.0.1:" + ports[2], Dir: api,
		Args: []string{program, "http://" + etcd, ports[2], api}}
	if err := c.Etcd.Start(); err != nil {
		return err
	}
	return c.StartAPI()
}

// StartAPI starts the API server, also after it was killed, and waits until it answers.
func (c *Cluster) StartAPI() error {
	if err := c.API.Start(); err != nil {
		return err
	}
	var err error
	for from := time.Now(); time.Since(from) < startTime && c.API.Running(); time.Sleep(50 * time.Millisecond) {
		if err = c.checkReady(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the API server does not get ready: %w\n%s\n%s", err, c.API.LogTail(), c.Etcd.LogTail())
}

// CAFile is the certificate of the API server's own authority.
func (c *Cluster) CAFile() string { return filepath.Join(c.API.Dir, "server.crt") }

// checkReady asks the server whether it is ready.
func (c *Cluster) checkReady() error {
	cert, err := os.ReadFile(c.CAFile())
	if err != nil {
		return err
	}
	c.ca = x509.NewCertPool()
	if !c.ca.AppendCertsFromPEM(cert) {
		return errors.New("the server's certificate is not complete")
	}
	web, stop := c.Client(AllowAll, nil, nil)
	defer stop()
	web.Timeout = 5 * time.Second
	reply, err := web.Get(c.Address() + "/readyz")
	if err != nil {
		return err
	}
	reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return errors.New(reply.Status)
	}
	return nil
}

// Address is the address of the API server.
func (c *Cluster) Address() string { return "https://" + c.API.Endpoint }

// Client makes a client with a token. via and wrap may be nil: the network that it uses, and what its requests pass
// through. stop closes its idle connections.
func (c *Cluster) Client(token string, via *servertest.Net, wrap func(http.RoundTripper) http.RoundTripper,
) (client *http.Client, stop func()) {
	return newClient(c.ca, token, via, wrap)
}

// newClient makes a client that trusts a certificate.
func newClient(ca *x509.CertPool, token string, via *servertest.Net, wrap func(http.RoundTripper) http.RoundTripper,
) (client *http.Client, stop func()) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca}, MaxIdleConnsPerHost: 64,
		IdleConnTimeout: 5 * time.Second}
	if via != nil {
		transport.DialContext = func(_ context.Context, _, addr string) (net.Conn, error) { return via.Dial(addr) }
	}
	var base http.RoundTripper = transport
	if wrap != nil {
		base = wrap(base)
	}
	return &http.Client{Transport: WithToken(base, token)}, transport.CloseIdleConnections
}

// WithToken adds a token to requests.
func WithToken(base http.RoundTripper, token string) http.RoundTripper {
	return tokenTransport{base, token}
}

type tokenTransport struct {
	base  http.RoundTripper
	token string
}

func (t tokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+t.token)
	return t.base.RoundTrip(r)
}

// WriteKubeconfig writes a file for kubectl and for this store, with the token of AllowVerbs or AllowAll.
func (c *Cluster) WriteKubeconfig(path, token string) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts:
- name: test
  context: {cluster: test, user: test, namespace: %s}
clusters:
- name: test
  cluster: {server: "%s", certificate-authority: "%s"}
users:
- name: test
  user: {token: "%s"}
`, Namespace, c.Address(), c.CAFile(), token)
	return os.WriteFile(path, []byte(text), 0o600)
}

// Close kills the servers and removes their files.
func (c *Cluster) Close() {
	for _, s := range []*servertest.Server{c.API, c.Etcd} {
		if s != nil {
			s.Kill()
		}
	}
	_ = os.RemoveAll(c.dir)
}
