package consul

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() { driver.Register("consul", openURL, storeurl.Describe((*storeURL).form)) }

// storeURL is what a URL says. Without a host, the agent and all else come from the environment variables of Consul's
// own tools, such as CONSUL_HTTP_ADDR; options of the URL come before these.
type storeURL struct {
	agent      string
	token      driverutil.Secret
	datacenter string
	opts       Options
	tls        driverutil.TLSOptions
}

func (s *storeURL) form() *storeurl.Form {
	return &storeurl.Form{
		Shape:    "consul://[:TOKEN@][host[:8500]]",
		Password: &s.token, Host: &s.agent,
		Options: []storeurl.Option{
			storeurl.TokenFile(&s.token, "a file with the ACL token, which keeps it out of the URL"),
			storeurl.Prefix(&s.opts.Prefix, "the beginning of all keys", "`holdfast/`, and nothing with `lock` or `key`"),
			storeurl.Layout(&s.opts.Layout, "`lock` is that of consul lock, and `key` that of the Lock of Consul's clients; both are for the mutex", layouts...),
			{Name: "node", To: storeurl.Text(&s.opts.Node), Default: "`" + defaultNode + "`", Means: "the node of the catalog " +
				"that the sessions belong to, which is registered if it does not exist"},
			{Name: "dc", To: storeurl.Text(&s.datacenter), Default: "the agent's", Means: "the datacenter"},
		},
		TLS: &s.tls,
	}
}

// openURL opens a store by its URL.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	config, opts, err := readURL(u)
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

// readURL turns a URL into the client's settings and ours. It makes no request.
func readURL(u *url.URL) (*api.Config, Options, error) {
	c := &api.Config{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: dialTimeout,
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext}}
	var s storeURL
	err := s.form().Read(u)
	if err != nil {
		return nil, s.opts, err
	}
	if s.tls.Off && s.tls.HasFiles() {
		return nil, s.opts, storeurl.RefuseBoth("tls=false", "other options about TLS")
	}
	if s.agent != "" {
		host, port, _ := net.SplitHostPort(s.agent)
		c.Address, c.Scheme = net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port), "http"
	}
	c.Datacenter, c.Token, s.opts.token = s.datacenter, s.token.Current(), &s.token
	if s.opts.files, err = s.tls.Open(); err != nil {
		return nil, s.opts, err
	}
	if s.opts.files != nil {
		c.Scheme = "https"
		c.Transport.TLSClientConfig = s.opts.files.Config() // for connections by way of a proxy
		// Consul's own client changes nothing in the transport of a client that it is given.
		c.HttpClient = &http.Client{Transport: c.Transport}
	}
	return c, s.opts, nil
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
