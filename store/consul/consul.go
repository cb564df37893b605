// Package consul keeps locks in the KV store of Consul: a claim is a key that is bound to a session.
//
//	import _ "github.com/holdfast-go/holdfast/store/consul"
//
//	client, err := holdfast.Open(ctx, "consul://127.0.0.1:8500", nil)
//
// Programs that have settings of Consul's own client pass them in:
//
//	store, err := consul.New(ctx, api.DefaultConfig(), nil)
//	client, err := holdfast.New(store, nil)
//
// # Layout
//
// A claim on the lock NAME is the key PREFIX NAME/.claims/SESSION.NUMBER, which Consul deletes with the session. The
// order of the claims is that in which their keys were made, and the fencing token is the key's CreateIndex. Names are
// written as they are, except for what a path cannot have: such bytes are %XX. Next to the claims there are, below
// PREFIX.holdfast/:
//
//   - gates/SESSION, written when a claim is given up whose request got no reply. It keeps that request from taking
//     effect later, and is deleted with the session.
//   - broken/CLAIM, written when a claim is broken by force, so that its holder learns of it. It is deleted with a
//     session of its own.
//   - runs/KEY, the history of a key of the run ledger, and runmarks/KEY, which exists while a run is in progress.
//
// # Layouts of other clients
//
// With LayoutLock a lock is the key NAME/.lock, and with LayoutKey the key NAME, which the holder's session has locked.
// So it excludes consul lock NAME, and the Lock of Consul's clients with that key, as Terraform and Vault use it,
// and is excluded by them. Any key that a session has locked holds the lock. There are only mutexes and elections, in
// no order. A key that exists and was never locked is not touched, since its value would be overwritten. After a
// foreign session was invalidated, its lock-delay bars the lock for Holdfast, too. Next to the key there is
// PREFIX.holdfast/tickets/NAME while a claim of ours holds it; its CreateIndex is the token, and its value the claim.
//
// # Sessions
//
// A session has no health checks, and belongs to a node of the catalog that no agent runs on (Options.Node). So it ends
// by its TTL alone, or when somebody destroys it. The sessions of Consul's own tools belong to the agent's node and its
// health check instead. Such a session ends when the agent is restarted or looks unhealthy to others, although the
// holder is at work and does not know. Consul's answer to that is the lock-delay: after a session was invalidated,
// nobody can take its keys for 15 s. Holdfast's holders stop at the end of their TTL, so its sessions need no
// lock-delay and have the smallest, 1 ms.
//
// # Time
//
// The leader of the servers ends a session when it has received no renewal for twice the TTL, by a clock that is never
// set. A holder counts one TTL from the start of its last renewal. So a claim of a dead holder blocks the lock for two
// TTLs. Consul refuses a TTL of less than 10 s (session_ttl_min); a smaller one is raised to that.
//
// # Decisions
//
// Claims are nodes under sessions. Rejected: records with compare-and-swap, which would cost the same writes.
// Consul tells no time, so a dead holder would have to be watched, and a job that tries once and exits would never get
// its lock. Rejected: the Date of the agents' replies as a clock: each agent has its own.
//
// A key that is shared with foreign clients has a ticket next to it, whose create index is the token. Rejected:
// the key's LockIndex, which begins again when consul lock deletes the key; and its ModifyIndex, which changes when the
// holder is asked to release. What the claim says is in the ticket, because anybody may write into the key.
//
// A renewal counts only if its reply comes within a TTL of the renewal before; otherwise the client destroys
// the session. The leader answers renewals of a session that it is about to delete, for as long as that write takes or
// fails. Rejected: a consistent read of the session after each renewal, which finds the session until the write is
// done. The cost is that a waiter whose client was cut off for longer than its TTL joins the queue again at its end.
package consul

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Options are the settings of a store. The zero value and nil mean the defaults.
type Options struct {
	// Layout is the form of the locks. Default: LayoutClaims.
	Layout Layout
	// Prefix starts all keys. It is put before the name unchanged. Default: holdfast/, and nothing in the layouts of
	// other clients.
	Prefix string
	// Node is the node of the catalog that sessions belong to. If there is none of that name, it is registered, with no
	// health check, which needs the permission node:write for it. Sessions need session:write. A node on which an agent
	// runs will do, but then a restart of that agent ends all locks. Default: holdfast.
	Node string
	// Clock is for tests. Default: the clock of this machine.
	Clock driver.Clock

	token *driverutil.Secret   // of the URL; nil: that of the settings
	files *driverutil.TLSFiles // of the URL; nil: none
}

const (
	defaultPrefix = "holdfast/"
	defaultNode   = "holdfast"
)

// store is a driver.Store on Consul.
type store struct {
	*sequence.Engine
	nodes *nodeStore
}

// New makes a store. The settings are for Consul's client, such as api.DefaultConfig() returns, which knows its
// environment variables; New changes nothing in them. It does no I/O, so the agent need not be reachable, and ctx is
// not used: the first claim connects. It returns ErrInvalid if the settings are nil, or if something in them or in
// the options cannot work.
func New(ctx context.Context, config *api.Config, opts *Options) (driver.Store, error) {
	nodes, err := newNodeStore(config, opts)
	if err != nil {
		return nil, err
	}
	if suffix, ok := suffixes[nodes.opts.Layout]; ok {
		return newKeyStore(nodes, suffix), nil
	}
	return &store{Engine: sequence.New(nodes), nodes: nodes}, nil
}

// NewTable gives access to bare records next to the locks, for data that is built on records but is no lock. Like New
// it does no I/O.
func NewTable(ctx context.Context, config *api.Config, opts *Options) (record.Table, error) {
	nodes, err := newNodeStore(config, opts)
	if err != nil {
		return nil, err
	}
	t := newTable(nodes, recordFolder)
	t.closeNodes = nodes.Close
	return t, nil
}

// withDefaults checks the options, and fills in the defaults.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	c.Layout, c.Node = cmp.Or(c.Layout, LayoutClaims), cmp.Or(c.Node, defaultNode)
	if err := driverutil.CheckLayout(c.Layout, layouts...); err != nil {
		return c, err
	}
	if c.Layout == LayoutClaims {
		c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	}
	if c.Clock.Monotonic == nil {
		c.Clock = driver.SystemClock
	}
	return c, checkPrefix(c.Prefix)
}

// checkPrefix refuses a prefix that would not be the same in the path of a request.
func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	for segment := range strings.SplitSeq(strings.TrimSuffix(prefix, "/"), "/") {
		if segment == "" || encodeName(segment) != segment {
			return fmt.Errorf("%w: the prefix %q: it may have letters, digits and -_.~:@$+!,;=() between single slashes, "+
				"and no slash or dot at the beginning", driver.ErrInvalid, prefix)
		}
	}
	return nil
}

// Explain names the key of a claim; SESSION means the session of its client and TTL.
func (s *store) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{Keys: []string{s.nodes.lockDir(c.Name) + "SESSION.NUMBER"}, TTL: s.nodes.sessionTTL(c.TTL)}
}

// newClient makes a client with connections of its own, which the transport keeps.
func newClient(config *api.Config, o Options) (*api.Client, *httpclient.Client, *http.Transport, error) {
	if config == nil {
		return nil, nil, nil, fmt.Errorf("%w: the settings are nil: pass what api.DefaultConfig returns", driver.ErrInvalid)
	}
	c := *config
	client, transport, err := newHTTPClient(&c)
	if err != nil {
		return nil, nil, nil, err
	}
	service := httpclient.Service{Name: "the agent of Consul", IsOwn: isOwnReply, IsOwnBody: isOwnBody, Clock: o.Clock}
	if o.token != nil && o.token.IsFile() {
		service.Sources = o.token.Sources()
		client.Transport = tokenTransport{client.Transport, o.token}
	}
	web := httpclient.New(client, service)
	c.HttpClient = web.HTTPClient()
	made, err := api.NewClient(&c)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%w: %v", driver.ErrInvalid, err)
	}
	return made, web, transport, nil
}

// tokenTransport gives each request the token as it is at the time.
type tokenTransport struct {
	base  http.RoundTripper
	token *driverutil.Secret
}

// RoundTrip implements http.RoundTripper.
func (t tokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Consul-Token", t.token.Current())
	return t.base.RoundTrip(r)
}

// isOwnReply reports whether a reply can come from an agent, whose refusals are plain text.
func isOwnReply(reply *http.Response) bool {
	return reply.StatusCode >= 300 || strings.HasPrefix(reply.Header.Get("Content-Type"), "application/json")
}

// isOwnBody reports whether the body of a reply can come from an agent: all of them are JSON.
func isOwnBody(_ *http.Response, body []byte) bool { return json.Valid(body) }

// newHTTPClient makes the client for the requests, and replaces the transport in the settings by one of its own.
func newHTTPClient(c *api.Config) (*http.Client, *http.Transport, error) {
	given := c.Transport
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: dialTimeout}
	if given != nil {
		transport = given.Clone()
	}
	// By default all but two connections would be closed after each request.
	transport.MaxIdleConnsPerHost, transport.MaxIdleConns = maxIdleConns, maxIdleConns
	transport.IdleConnTimeout = time.Minute
	c.Transport = transport
	client := c.HttpClient
	if client == nil {
		// A first client fills in what its environment variables say of TLS.
		if _, err := api.NewClient(c); err != nil {
			return nil, nil, fmt.Errorf("%w: %v", driver.ErrInvalid, err)
		}
		client = c.HttpClient
	}
	used := client.Transport
	if given != nil && used == http.RoundTripper(given) {
		used = transport // the one that Close knows
	}
	copied := *client
	copied.Transport = cmp.Or[http.RoundTripper](used, http.DefaultTransport)
	return &copied, transport, nil
}
