package kubernetes

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
)

// errConfig is wrapped by errors about a file or a program that the configuration names.
var errConfig = errors.New("the configuration cannot be used")

// Where a pod finds its API server, and who it is there.
const (
	podDir      = "/var/run/secrets/kubernetes.io/serviceaccount"
	podHostEnv  = "KUBERNETES_SERVICE_HOST"
	podPortEnv  = "KUBERNETES_SERVICE_PORT"
	kubeconfigs = "KUBECONFIG"
)

// tokenAge is how long a token that was read from a file is used: the cluster replaces it before it expires.
const tokenAge = time.Minute

// kubeconfig is what matters of the files that kubectl reads.
type kubeconfig struct {
	CurrentContext string `yaml:"current-context"`
	Contexts       []struct {
		Name    string      `yaml:"name"`
		Context kubeContext `yaml:"context"`
	} `yaml:"contexts"`
	Clusters []struct {
		Name    string      `yaml:"name"`
		Cluster kubeCluster `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string   `yaml:"name"`
		User kubeUser `yaml:"user"`
	} `yaml:"users"`
}

type kubeContext struct {
	Cluster   string `yaml:"cluster"`
	User      string `yaml:"user"`
	Namespace string `yaml:"namespace"`
}

type kubeCluster struct {
	Server        string `yaml:"server"`
	CA            string `yaml:"certificate-authority"`
	CAData        string `yaml:"certificate-authority-data"`
	Insecure      bool   `yaml:"insecure-skip-tls-verify"`
	TLSServerName string `yaml:"tls-server-name"`
	ProxyURL      string `yaml:"proxy-url"`
}

type kubeUser struct {
	Token        string    `yaml:"token"`
	TokenFile    string    `yaml:"tokenFile"`
	Cert         string    `yaml:"client-certificate"`
	CertData     string    `yaml:"client-certificate-data"`
	Key          string    `yaml:"client-key"`
	KeyData      string    `yaml:"client-key-data"`
	Username     string    `yaml:"username"`
	Password     string    `yaml:"password"`
	Exec         *kubeExec `yaml:"exec"`
	AuthProvider any       `yaml:"auth-provider"`
	As           string    `yaml:"as"`
}

// kubeExec names a program that prints credentials.
type kubeExec struct {
	APIVersion string   `yaml:"apiVersion"`
	Command    string   `yaml:"command"`
	Args       []string `yaml:"args"`
	Env        []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	ProvideClusterInfo bool   `yaml:"provideClusterInfo"`
	InstallHint        string `yaml:"installHint"`
}

// access is how a server is reached.
type access struct {
	cluster   kubeCluster
	user      kubeUser
	namespace string
}

// findAccess reads the configuration as kubectl does: from the file that is given, those that KUBECONFIG names, the one
// in the home directory, or as a pod of the cluster.
func findAccess(file, contextName string) (access, error) {
	var files []string
	switch list := os.Getenv(kubeconfigs); {
	case file != "":
		files = []string{file}
	case list != "":
		files = filepath.SplitList(list)
	default:
		if home, err := os.UserHomeDir(); err == nil {
			files = []string{filepath.Join(home, ".kube", "config")}
		}
	}
	var all kubeconfig
	found := false
	for _, f := range files {
		k, err := readKubeconfig(f)
		switch {
		case errors.Is(err, os.ErrNotExist) && file == "":
			continue
		case err != nil:
			return access{}, err
		}
		found = true
		all.CurrentContext = cmp.Or(all.CurrentContext, k.CurrentContext)
		all.Contexts = append(all.Contexts, k.Contexts...)
		all.Clusters = append(all.Clusters, k.Clusters...)
		all.Users = append(all.Users, k.Users...)
	}
	if found {
		return all.find(contextName)
	}
	if host := os.Getenv(podHostEnv); host != "" && contextName == "" {
		return podAccess(host)
	}
	return access{}, driverutil.RefuseStore(errors.New("no configuration of a cluster is found: set KUBECONFIG, or " +
		"kubeconfig= in the store's URL, or run in a pod that has a service account"))
}

// podAccess is how a pod reaches its cluster.
func podAccess(host string) (access, error) {
	a := access{cluster: kubeCluster{Server: "https://" + net.JoinHostPort(host, os.Getenv(podPortEnv)),
		CA: filepath.Join(podDir, "ca.crt")}, user: kubeUser{TokenFile: filepath.Join(podDir, "token")}}
	if _, err := os.Stat(a.user.TokenFile); err != nil {
		return a, driverutil.RefuseStore(fmt.Errorf("the pod has no service account: %w", err))
	}
	ns, err := os.ReadFile(filepath.Join(podDir, "namespace"))
	if err == nil {
		a.namespace = strings.TrimSpace(string(ns))
	}
	return a, nil
}

// readKubeconfig reads one file. The paths in it are relative to it.
func readKubeconfig(path string) (k kubeconfig, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return k, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	if yaml.Unmarshal(data, &k) != nil { // its error may quote a secret
		return k, fmt.Errorf("%w: %s is not a kubeconfig file", driver.ErrInvalid, path)
	}
	dir := filepath.Dir(path)
	for i := range k.Clusters {
		absolute(dir, &k.Clusters[i].Cluster.CA)
	}
	for i := range k.Users {
		u := &k.Users[i].User
		absolute(dir, &u.Cert, &u.Key, &u.TokenFile)
		if u.Exec != nil && strings.ContainsRune(u.Exec.Command, filepath.Separator) {
			absolute(dir, &u.Exec.Command)
		}
	}
	return k, nil
}

// absolute makes paths that are relative to a directory absolute.
func absolute(dir string, paths ...*string) {
	for _, p := range paths {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
}

// find returns the cluster and the user of a context. Of several with one name the first counts.
func (k *kubeconfig) find(name string) (a access, err error) {
	name = cmp.Or(name, k.CurrentContext)
	for _, c := range k.Contexts {
		if c.Name != name {
			continue
		}
		a.namespace = c.Context.Namespace
		ok := false
		for _, cl := range k.Clusters {
			if cl.Name == c.Context.Cluster && !ok {
				a.cluster, ok = cl.Cluster, true
			}
		}
		if !ok {
			return a, fmt.Errorf("%w: the kubeconfig has no cluster %q", driver.ErrInvalid, c.Context.Cluster)
		}
		ok = c.Context.User == ""
		for _, u := range k.Users {
			if u.Name == c.Context.User && !ok {
				a.user, ok = u.User, true
			}
		}
		if !ok {
			return a, fmt.Errorf("%w: the kubeconfig has no user %q", driver.ErrInvalid, c.Context.User)
		}
		return a, nil
	}
	if name == "" {
		return a, fmt.Errorf("%w: the kubeconfig has no current context: name one with context=", driver.ErrInvalid)
	}
	return a, fmt.Errorf("%w: the kubeconfig has no context %q", driver.ErrInvalid, name)
}

// newHTTPClient makes a client with the certificates and the credentials of an access. It speaks HTTP/1.1: a connection
// of its own for each request in flight, so that one that is cut holds up nothing else.
func (a *access) newHTTPClient(dial driverutil.DialFunc) (*http.Client, *http.Transport, error) {
	auth := &authTransport{user: a.user, cluster: a.cluster, tokenFile: new(driverutil.Secret)}
	auth.tokenFile.SetText(a.user.Token)
	switch {
	case a.user.AuthProvider != nil:
		return nil, nil, fmt.Errorf("%w: the kubeconfig's user uses auth-provider, which kubectl no longer supports; "+
			"use exec", driver.ErrUnsupported)
	case a.user.As != "":
		return nil, nil, fmt.Errorf("%w: the kubeconfig's user impersonates another one", driver.ErrUnsupported)
	case a.user.TokenFile != "":
		if err := auth.tokenFile.ReadFrom(a.user.TokenFile); err != nil {
			return nil, nil, driverutil.RefuseStore(err)
		}
	}
	files, err := a.openFiles(auth)
	if err != nil {
		return nil, nil, err
	}
	dialer := (&net.Dialer{Timeout: requestTimeout, KeepAlive: keepAlive}).DialContext
	if dial != nil {
		dialer = dial
	}
	// The TLS configuration is for connections by way of a proxy: those keep the authority of the start.
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: files.Config(),
		TLSHandshakeTimeout: requestTimeout, MaxIdleConnsPerHost: maxIdleConns, MaxIdleConns: maxIdleConns,
		IdleConnTimeout: idleTimeout, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		DialContext: dialer, DialTLSContext: files.Dialer(dialer, requestTimeout)}
	if a.cluster.ProxyURL != "" {
		proxy, err := url.Parse(a.cluster.ProxyURL)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: the proxy-url of the cluster is no URL", driver.ErrInvalid)
		}
		transport.Proxy = http.ProxyURL(proxy)
	}
	auth.base = transport
	return &http.Client{Transport: auth}, transport, nil
}

// openFiles returns what makes the TLS connections, with the files and the data of the configuration.
func (a *access) openFiles(auth *authTransport) (*driverutil.TLSFiles, error) {
	o := driverutil.TLSOptions{On: true, Name: a.cluster.TLSServerName}
	roots := x509.NewCertPool()
	if a.cluster.CAData == "" {
		o.CA = a.cluster.CA
	} else if ca, err := dataOrFile(a.cluster.CAData, ""); err != nil {
		return nil, err
	} else if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%w: the certificate authority of the cluster is not PEM", driver.ErrInvalid)
	}
	asks := a.user.Exec != nil || a.user.CertData != "" || a.user.KeyData != ""
	if !asks {
		o.Cert, o.Key = a.user.Cert, a.user.Key
	}
	files, err := o.Open()
	if err != nil {
		return nil, fmt.Errorf("the files of the kubeconfig: %w", err)
	}
	files.Adjust = func(c *tls.Config) {
		c.InsecureSkipVerify, c.NextProtos = a.cluster.Insecure, []string{"http/1.1"}
		if a.cluster.CAData != "" {
			c.RootCAs = roots
		}
		if asks {
			c.GetClientCertificate = auth.clientCertificate
		}
	}
	return files, nil
}

const (
	maxIdleConns = 64
	idleTimeout  = 90 * time.Second
	keepAlive    = 5 * time.Second // a watch whose connection is cut sends nothing by which that would show
)

// dataOrFile returns what is in base64, or in a file.
func dataOrFile(data, file string) ([]byte, error) {
	switch {
	case data != "":
		d, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
		if err != nil {
			return nil, fmt.Errorf("%w: data in the kubeconfig are not base64", driver.ErrInvalid)
		}
		return d, nil
	case file != "":
		d, err := os.ReadFile(file)
		if err != nil {
			return nil, driverutil.RefuseStore(err)
		}
		return d, nil
	}
	return nil, nil
}

// authTransport adds the user's credentials to requests. If the server does not know credentials that may have been
// replaced, the request, which the server has not done, is sent once more with the new ones.
type authTransport struct {
	base      *http.Transport
	user      kubeUser
	cluster   kubeCluster
	tokenFile *driverutil.Secret

	mu      sync.Mutex
	token   string
	cert    *tls.Certificate
	read    time.Time // when the token was read
	expires time.Time // zero: not known
	running *pluginRun
}

// RoundTrip sends the request with the present token, and once more with a new one if that is refused: a token may
// have been replaced a moment ago.
func (a *authTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	token, fresh, err := a.currentToken(r.Context(), "")
	if err != nil {
		return nil, err
	}
	reply, err := a.base.RoundTrip(a.withToken(r, token))
	if err != nil || reply.StatusCode != http.StatusUnauthorized || r.Body != nil && r.GetBody == nil {
		return reply, err
	}
	again := token
	if !fresh {
		if again, _, err = a.currentToken(r.Context(), token); err != nil {
			return reply, nil
		}
	}
	if again == token && !a.hasCertificate() {
		return reply, nil
	}
	r = r.Clone(r.Context())
	if r.GetBody != nil {
		if r.Body, err = r.GetBody(); err != nil {
			return reply, nil
		}
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(reply.Body, httpclient.MaxReply))
	reply.Body.Close()
	if a.hasCertificate() {
		a.base.CloseIdleConnections() // they were made with the certificate of then, which may have expired
	}
	return a.base.RoundTrip(a.withToken(r, again))
}

// hasCertificate reports whether connections are made with a client certificate, which may be replaced.
func (a *authTransport) hasCertificate() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.user.Cert != "" || a.cert != nil
}

// withToken returns a copy of a request with the credentials.
func (a *authTransport) withToken(r *http.Request, token string) *http.Request {
	switch {
	case token != "":
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	case a.user.Username != "":
		r = r.Clone(r.Context())
		r.SetBasicAuth(a.user.Username, a.user.Password)
	}
	return r
}

// currentToken returns the token of now, and whether it was read just now. bad is one that the server has refused.
func (a *authTransport) currentToken(ctx context.Context, bad string) (token string, fresh bool, err error) {
	if a.user.Exec != nil {
		return a.pluginToken(ctx, bad)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.user.TokenFile == "" {
		return a.user.Token, false, nil
	}
	if a.token != "" && (bad == "" || a.token != bad) && time.Since(a.read) < tokenAge {
		return a.token, false, nil
	}
	a.token, a.read = strings.TrimSpace(a.tokenFile.Current()), time.Now()
	return a.token, true, nil
}

// pluginTimeout is how long a program that prints credentials may run. It may ask a server itself.
const pluginTimeout = time.Minute

// pluginRun is one run of a program that prints credentials, for all requests that wait for it.
type pluginRun struct {
	done  chan struct{} // closed at the end
	token string
	err   error
}

// pluginToken is currentToken for credentials that a program prints. The program goes on if the request gives up.
func (a *authTransport) pluginToken(ctx context.Context, bad string) (token string, fresh bool, err error) {
	a.mu.Lock()
	if !a.read.IsZero() && (bad == "" || a.token != bad) && (a.expires.IsZero() || time.Now().Before(a.expires)) {
		defer a.mu.Unlock()
		return a.token, false, nil
	}
	run := a.running
	if run == nil {
		run = &pluginRun{done: make(chan struct{})}
		a.running = run
		go a.runPlugin(run)
	}
	a.mu.Unlock()
	select {
	case <-run.done:
		return run.token, true, run.err
	case <-ctx.Done():
		return "", false, ctx.Err()
	}
}

// runPlugin runs the program, and keeps what it has printed.
func (a *authTransport) runPlugin(run *pluginRun) {
	ctx, cancel := context.WithTimeout(context.Background(), pluginTimeout)
	defer cancel()
	got, cert, err := a.askPlugin(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.cert, a.token, a.read, a.expires = cert, got.Status.Token, time.Now(), got.Status.Expires
	}
	run.token, run.err, a.running = a.token, err, nil
	close(run.done)
}

// clientCertificate returns the user's certificate when a connection is made, if not both parts of it are files.
func (a *authTransport) clientCertificate(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if a.user.Exec != nil {
		if _, _, err := a.currentToken(r.Context(), ""); err != nil {
			return nil, err
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		return cmp.Or(a.cert, &tls.Certificate{}), nil
	}
	cert, err := dataOrFile(a.user.CertData, a.user.Cert)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errConfig, err)
	}
	key, err := dataOrFile(a.user.KeyData, a.user.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errConfig, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%w: the client certificate of the kubeconfig: %w", errConfig, err)
	}
	return &pair, nil
}

// execCredential is what a program prints, and what it is told in the environment.
type execCredential struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Interactive bool         `json:"interactive"`
		Cluster     *execCluster `json:"cluster,omitempty"`
	} `json:"spec"`
	Status *struct {
		Token   string    `json:"token"`
		Cert    string    `json:"clientCertificateData"`
		Key     string    `json:"clientKeyData"`
		Expires time.Time `json:"expirationTimestamp"`
	} `json:"status,omitempty"`
}

type execCluster struct {
	Server        string `json:"server"`
	TLSServerName string `json:"tls-server-name,omitempty"`
	Insecure      bool   `json:"insecure-skip-tls-verify,omitempty"`
	CAData        string `json:"certificate-authority-data,omitempty"`
	ProxyURL      string `json:"proxy-url,omitempty"`
}

// askPlugin runs the program that prints credentials. What it writes to standard error is not shown: it may be a
// secret.
func (a *authTransport) askPlugin(ctx context.Context) (got execCredential, cert *tls.Certificate, err error) {
	e := a.user.Exec
	in := execCredential{APIVersion: cmp.Or(e.APIVersion, "client.authentication.k8s.io/v1"), Kind: "ExecCredential"}
	if e.ProvideClusterInfo {
		ca, err := dataOrFile(a.cluster.CAData, a.cluster.CA)
		if err != nil {
			return got, nil, fmt.Errorf("%w: %w", errConfig, err)
		}
		in.Spec.Cluster = &execCluster{Server: a.cluster.Server, TLSServerName: a.cluster.TLSServerName,
			Insecure: a.cluster.Insecure, CAData: base64.StdEncoding.EncodeToString(ca), ProxyURL: a.cluster.ProxyURL}
	}
	info, err := json.Marshal(in)
	if err != nil {
		return got, nil, err
	}
	c := exec.CommandContext(ctx, e.Command, e.Args...)
	c.WaitDelay = time.Second // a child of its own may keep the output open
	c.Env = append(os.Environ(), "KUBERNETES_EXEC_INFO="+string(info))
	for _, v := range e.Env {
		c.Env = append(c.Env, v.Name+"="+v.Value)
	}
	out, err := c.Output()
	if err != nil {
		return got, nil, fmt.Errorf("%w: the program %s, which gives the credentials: %w %s", errConfig, e.Command, err, e.InstallHint)
	}
	if json.Unmarshal(out, &got) != nil || got.Status == nil {
		return got, nil, fmt.Errorf("%w: the program %s printed no ExecCredential", errConfig, e.Command)
	}
	if got.Status.Cert == "" {
		return got, nil, nil
	}
	pair, err := tls.X509KeyPair([]byte(got.Status.Cert), []byte(got.Status.Key))
	if err != nil {
		return got, nil, fmt.Errorf("%w: the certificate from the program %s: %w", errConfig, e.Command, err)
	}
	return got, &pair, nil
}
