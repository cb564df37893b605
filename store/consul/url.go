package consul

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// The URL form is consul://[:TOKEN@]host[:8500][?options]. Without a host, the agent and all else come from the
// environment variables of Consul's own tools, such as CONSUL_HTTP_ADDR; options of the URL come before these.
//
//	token-file=FILE   reads the ACL token from a file, which keeps it out of the URL
//	layout=L          lock or key: that of consul lock, and that of the Lock of Consul's clients
//	prefix=P          starts all keys
//	node=N            the node of the catalog that sessions belong to
//	dc=D              the datacenter: by default the agent's own
//	tls=true, tls-ca=FILE, tls-cert=FILE, tls-key=FILE, tls-name=NAME   as for the other stores
func init() { driver.Register("consul", openURL) }

func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	config, opts, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	if dial := driverutil.DialerOf(ctx); dial != nil {
		config.Transport.DialContext = dial
	}
	if files := opts.files; files != nil {
		config.Transport.DialTLSContext = files.Dialer(config.Transport.DialContext, dialTimeout)
	}
	return New(ctx, config, &opts)
}

// parseURL reads a store's URL. It makes no request.
func parseURL(u *url.URL) (*api.Config, Options, error) {
	c := &api.Config{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: dialTimeout,
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext}}
	var o Options
	var secure driverutil.TLSOptions
	inURL, _ := u.User.Password()
	token := driverutil.NewSecret(inURL)
	text := func(to *string) func(string) error { return func(v string) error { *to = v; return nil } }
	err := driverutil.ParseOptions(u, secure.AddTo(map[string]func(string) error{
		"token-file": token.ReadFrom,
		"layout":     func(v string) error { o.Layout = Layout(v); return nil },
		"prefix":     text(&o.Prefix), "node": text(&o.Node), "dc": text(&c.Datacenter),
	}))
	if err != nil {
		return nil, o, err
	}
	switch {
	case u.User.Username() != "":
		return nil, o, fmt.Errorf("%w: Consul has no users: write a token as consul://:TOKEN@host, or use token-file",
			driver.ErrInvalid)
	case inURL != "" && token.IsFile():
		return nil, o, fmt.Errorf("%w: the URL has a token and a token-file: leave one of them out", driver.ErrInvalid)
	case secure.Off && secure.HasFiles():
		return nil, o, fmt.Errorf("%w: the URL has tls=false and other tls options: leave out tls=false, or the others",
			driver.ErrInvalid)
	case u.Path != "" && u.Path != "/":
		return nil, o, fmt.Errorf("%w: a Consul store's URL has no path; write ?prefix=... for what starts its keys",
			driver.ErrInvalid)
	case strings.Contains(u.Host, ","):
		return nil, o, fmt.Errorf("%w: a Consul store's URL names one agent, as in consul://127.0.0.1:8500",
			driver.ErrInvalid)
	case u.Host != "":
		c.Address, c.Scheme = net.JoinHostPort(cmp.Or(u.Hostname(), "127.0.0.1"), cmp.Or(u.Port(), "8500")), "http"
	}
	c.Token, o.token = token.Current(), token
	if o.files, err = secure.Open(); err != nil {
		return nil, o, err
	}
	if o.files != nil {
		c.Scheme = "https"
		c.Transport.TLSClientConfig = o.files.Config() // for connections by way of a proxy
		// Consul's own client changes nothing in the transport of a client that it is given.
		c.HttpClient = &http.Client{Transport: c.Transport}
	}
	return c, o, nil
}

// describeAgent names the agent without secrets, and says whether it is on another machine and reached without TLS.
func describeAgent(c *api.Config) (name string, isPlain bool) {
	address := cmp.Or(c.Address, os.Getenv(api.HTTPAddrEnvName), "127.0.0.1:8500")
	scheme := c.Scheme
	if before, after, ok := strings.Cut(address, "://"); ok {
		scheme, address = before, after
	}
	address, _, _ = strings.Cut(address, "/")
	address = address[strings.LastIndexByte(address, '@')+1:]
	byEnvironment, _ := strconv.ParseBool(os.Getenv(api.HTTPSSLEnvName)) // Consul's own client ignores what is no bool
	secure := scheme == "https" || scheme == "" && byEnvironment
	host, _, _ := net.SplitHostPort(address)
	return "consul://" + address, !secure && scheme != "unix" && !driverutil.IsLoopback(host)
}
