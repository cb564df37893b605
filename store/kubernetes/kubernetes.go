// Package kubernetes keeps locks in a Kubernetes cluster: one Lease object of coordination.k8s.io/v1 per lock, in one
// namespace.
//
//	import _ "github.com/holdfast-go/holdfast/store/kubernetes"
//
//	client, err := holdfast.Open(ctx, "kubernetes://my-namespace", nil)
//
// A program that has a configuration of client-go passes the HTTP client that this makes:
//
//	cfg, err := rest.InClusterConfig() // k8s.io/client-go/rest
//	web, err := rest.HTTPClientFor(cfg)
//	store, err := kubernetes.New(ctx, web, cfg.Host, "my-namespace", nil)
//	client, err := holdfast.New(store, nil)
//
// # Layout
//
// The lock NAME is the object whose name is a prefix and NAME, with a dot and two hexadecimal digits for each character
// that such a name cannot have; a long name is a hash. The annotations holdfast/name and holdfast/record have the whole
// name and the record, as JSON that people can read. The holderIdentity shows who holds the lock, and is read by no
// client. The object stays when the lock is free, for its token. Any client that lists or waits removes it after ten
// idle minutes. [LayoutLeaderElection] is the layout of client-go's leader election.
//
// # Time
//
// The API servers' clocks decide when a claim has expired. Each reply tells one of them, to a second. No client's time
// of day is used. The clocks of the servers of one cluster must agree within a second, as its etcd demands as well.
//
// # Permissions
//
// A role with the verbs get, create, update, watch, list and delete for the resource leases of the API group
// coordination.k8s.io in the namespace. Without watch, waiters poll. Without list and delete, idle locks are not
// removed, and holdfast list is refused.
//
// # Decisions
//
// Requests of our own, and not client-go, which would make each program with this package larger by 20 MB. The store
// sends seven kinds of requests. A program that has a configuration of client-go passes the HTTP client that it makes.
//
// Records with compare-and-swap, by uid and resourceVersion. Rejected: the holder alone, as in client-go, which has no
// queue and no tokens, and takes a dead holder's lease only after it has watched it for its whole duration.
//
// The Date of replies is the clock, although each API server has its own: claims allow for a second between them.
// Rejected: the renewTime in a Lease, which is by its writer's clock. It is only shown.
//
// The holderIdentity of a Lease in our own layout is for people, and no client of ours reads it. It is never empty, and
// its leaseDurationSeconds is the longest, so that client-go takes no such Lease, not even that of a free lock, on
// which its leader would exclude nobody.
//
// One watch per object and client, which all waiters share while anybody waits. It begins at the version that the first
// of them has read. A server that has forgotten that version says so; then the watch begins with what the server has,
// and the object is read once more. Each waiter compares the version that it has read with what the watch has shown, so
// that no change is missed before it came; Kubernetes documents that resource versions grow. When the watch ends, the
// waiters read, and the next watch begins there. A watch that does not show what a read has shown is taken for broken
// after 5 s.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/foreign"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options are the settings of a store. The zero value and nil mean the defaults.
type Options struct {
	// Prefix begins the names of all objects: small letters, digits, dashes and dots, at most 100, and none of the last
	// two at the beginning. Default: "holdfast-", and nothing for LayoutLeaderElection.
	Prefix string
	// Layout is how a lock is stored. All users of a lock must use the same one. Default: LayoutRecord.
	Layout Layout
	// Clock is the client's clock, which tests replace. Default: driver.SystemClock.
	Clock driver.Clock
}

// Layout is how a lock is stored in a Lease.
type Layout string

const (
	// LayoutRecord is Holdfast's own layout, and the default.
	LayoutRecord Layout = "record"
	// LayoutLeaderElection is the layout of client-go's leader election: the lock NAME is the lease NAME, and excludes
	// a program that elects its leader by this lease. A name that no object can have is refused. It supports the plain
	// mutex and the election only, and waiters poll.
	//
	// client-go takes our holder for dead when it has seen the lease unchanged for its duration, which is our TTL in
	// whole seconds. Before client-go 0.27 it took its own LeaseDuration instead, which must then not be less than our
	// TTL. A holder of client-go has expired by the same rule: when this client has seen the lease unchanged for its
	// duration, and a margin. So a claim that does not wait cannot take the lock of a dead one. A foreign holder cannot
	// be notified, so it can be broken by force only.
	//
	// Tokens are Holdfast's own, in an annotation of the lease, which client-go keeps. A foreign holder has none:
	// leaseTransitions says how often the holder has changed, but does not change when a holder loses the lease and
	// takes it again, and begins again when the object is removed. The object is never removed.
	LayoutLeaderElection Layout = "leaderelection"
)

// layouts are all of them, the default first.
var layouts = []Layout{LayoutRecord, LayoutLeaderElection}

const (
	defaultPrefix = "holdfast-"
	maxPrefix     = 100
	lockLabel     = "lock"
	// runsPrefix begins, after the prefix, the names of the objects of the run ledger. No lock has such a name: where a
	// lock's name has a dot, two hexadecimal digits follow, or the end of a hash.
	runsPrefix = "runs.of."
	runLabel   = "run"
)

// New makes a store that keeps locks in a namespace. server is the address of the API server, such as
// https://10.0.0.1:6443, and web has the certificates and the credentials for it. It is the caller's: Close does not
// close its connections. A client that limits the time of requests ends watches, too.
//
// New sends one request, which ctx bounds. It returns ErrInvalid if web is nil or an option cannot work, ErrDenied if
// the server refuses the credentials or the namespace, and ErrUnsupported if it is no Kubernetes. After any other error
// it may be tried again.
func New(ctx context.Context, web *http.Client, server, namespace string, opts *Options) (driver.Store, error) {
	t, err := newTable(web, server, namespace, opts)
	if err != nil {
		return nil, err
	}
	store, err := t.openStore(ctx)
	if err != nil {
		t.close()
	}
	return store, err
}

// openStore finds out whether the namespace can be read, and makes the store. If it fails, the table can still be used.
func (t *table) openStore(ctx context.Context) (driver.Store, error) {
	if _, err := t.get(ctx, objectName(defaultPrefix, "holdfast-probe")); err != nil && !errors.Is(err, errNotFound) {
		return nil, err
	}
	if t.layout == LayoutLeaderElection {
		return foreign.New(newLeaderElectionTable(t), string(LayoutLeaderElection)), nil
	}
	return record.New(t), nil
}

// NewTable gives access to bare records, for data that is built on records but is no lock. It is opened like New, but
// sends nothing, and ctx is not used. Use a Prefix that no store of locks has.
func NewTable(_ context.Context, web *http.Client, server, namespace string, opts *Options) (record.Table, error) {
	t, err := newTable(web, server, namespace, opts)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// OpenLedgerTable opens the records of the run ledger, in the same namespace. It sends nothing.
func (t *table) OpenLedgerTable(context.Context) (record.Table, error) {
	l := *t
	l.client, l.prefix, l.label = t.share(), t.prefix+runsPrefix, runLabel
	return &l, nil
}

// newTable checks the options.
func newTable(web *http.Client, server, namespace string, opts *Options) (*table, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	at, err := url.Parse(server)
	switch {
	case web == nil:
		return nil, fmt.Errorf("%w: the HTTP client is nil: pass one that rest.HTTPClientFor of client-go has made",
			driver.ErrInvalid)
	case err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http" || at.User != nil ||
		at.RawQuery != "":
		return nil, fmt.Errorf("%w: the address of the API server looks like https://host:6443", driver.ErrInvalid)
	case checkObjectName(namespace) != nil || len(namespace) > 63 || strings.Contains(namespace, "."):
		return nil, fmt.Errorf("%w: a namespace is 1 to 63 small letters, digits and dashes", driver.ErrInvalid)
	case len(o.Prefix) > maxPrefix || o.Prefix != "" && checkObjectName(o.Prefix+"0") != nil:
		return nil, fmt.Errorf("%w: a prefix is at most %d small letters, digits, dashes and dots, and begins with a "+
			"letter or a digit", driver.ErrInvalid, maxPrefix)
	}
	if err := driverutil.CheckLayout(o.Layout, layouts...); err != nil {
		return nil, err
	}
	if o.Prefix == "" && o.Layout != LayoutLeaderElection {
		o.Prefix = defaultPrefix
	}
	if o.Clock.Monotonic == nil {
		o.Clock = driver.SystemClock
	}
	clock := &record.ServerClock{Clock: o.Clock, HostsApart: maxHostSkew}
	c := &client{server: strings.TrimRight(server, "/"), namespace: namespace,
		clock: clock, life: driverutil.NewLifetime(),
		http: httpclient.New(web, httpclient.Service{Name: "the API server", IsOwn: isOwnReply, Clock: o.Clock,
			AddDate: clock.AddDate}),
		watches: newWatches(), session: record.NewSession(), onClose: func() {}}
	t := &table{client: c, prefix: o.Prefix, label: lockLabel, layout: o.Layout,
		place: "kubernetes://" + namespace + "?server=" + at.Scheme + "://" + at.Host + strings.TrimRight(at.Path, "/")}
	if o.Layout == LayoutLeaderElection {
		t.place += "&layout=" + string(o.Layout)
	}
	if o.Prefix != "" && o.Prefix != defaultPrefix {
		t.place += "&prefix=" + o.Prefix
	}
	return t, nil
}
