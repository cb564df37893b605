// Package zookeeper keeps locks in a ZooKeeper ensemble: as ephemeral sequential nodes in the layout of Curator's
// recipes, or of kazoo's, so that locks taken with them and with this package exclude each other.
//
//	import _ "github.com/holdfast-go/holdfast/store/zookeeper"
//
//	client, err := holdfast.Open(ctx, "zookeeper://user:password@host1:2181,host2:2181?namespace=locks", nil)
//
// or, for programs,
//
//	store, err := zookeeper.New(ctx, []string{"host1:2181", "host2:2181"}, nil)
//	client, err := holdfast.New(store, nil)
//
// # Layout
//
// A claim on the lock NAME is an ephemeral sequential child of the node /NAMESPACE/NAME:
//
//	_c_ID-SESSION-KIND.LIMIT.WEIGHT-lock-0000000042
//
// It ends in lock- and the number, as the nodes of Curator's InterProcessMutex and go-zookeeper's Lock do; for a
// read-write lock it ends in __READ__ or __WRIT__ and the number, as those of Curator's InterProcessReadWriteLock
// do. Its data tell people who made it. The parents are containers, which the servers remove when they are empty.
// The fencing token is the transaction that created the node (czxid). The numbers cannot be tokens: they begin at
// 0 again when their parent is created again.
//
// Every child that looks like a claim of Curator, go-zookeeper or kazoo counts as one. Other children are ignored.
// Foreign claims are exclusive, except foreign readers, which share with ours. Options.Layout says how our own
// claims are named, and so which clients see them: kazoo does not see Curator's nodes, nor Curator kazoo's, and
// Curator's mutex and read-write lock do not see each other. So a mutex of ours that finds Curator's read-write
// lock on its path is refused with ErrMismatch: it would not keep that lock out. With [LayoutKazoo] a read-write lock
// is refused as well. Neither can keep out one that comes while it is held already. With [LayoutCuratorReadWrite] a
// mutex is one of its writers.
//
// The recipes are Curator's InterProcessMutex, InterProcessReadWriteLock and InterProcessSemaphoreV2,
// go-zookeeper's Lock, and kazoo's Lock, ReadLock and WriteLock. Curator's LeaderLatch and kazoo's Semaphore have
// nodes of their own: they do not see ours, nor we theirs.
//
// Two other layouts can do less: [LayoutCuratorSemaphore] has the permits of Curator's semaphore, and
// [LayoutPlain] has locks that are one ephemeral node each.
//
// Two faults of those recipes cannot be repaired here: kazoo's ReadLock waits for writers behind it, which wait
// for it (2.8.0); and a writer of Curator's that becomes a reader gets a new number, so that a waiting writer is
// let in next to it (5.4.0; where it keeps its number, as in later versions, we respect it).
//
// Characters that ZooKeeper does not take in a path are written as %XX, and so is %.
//
// # Sessions
//
// Each TTL that is used has a session of its own, with a connection of its own. It is kept alive fifteen times per
// TTL, by a write that the servers always refuse. A reply to it proves that the quorum has agreed, as for any
// write. (A sync, which other clients use, proves less: a leader that was deposed and has not learned of it answers
// one.) A TTL beyond what the servers grant is refused; see minSessionTimeout and maxSessionTimeout in their
// configuration.
//
// A session that comes over a new connection is granted a timeout again, by the server that it comes to. So that
// server is first asked for another session, which costs the quorum two writes. If it grants less, it is treated
// like one that is down; if all of them grant less, the session ends and its claims are lost.
//
// A TTL should be at least three ticks of the servers. A follower tells the leader every half tick which sessions
// it has heard from: with less, a holder may rely on its lock for up to a sixth of a tick too long.
//
// # Decisions
//
// A connection of our own (store/zookeeper/internal/zk; the lock recipe is in store/zookeeper). It sends no
// request late or twice. Rejected: go-zookeeper, which has no contexts, may send queued requests in a new session after
// the old one has expired, and does not return the transaction that made a node.
//
// The keep-alive is a transaction that is sure to be refused, which goes through the quorum. So is what
// precedes a read that must be fresh. It is a transaction of one check, because servers with enableEagerACLCheck refuse
// single writes by themselves, also when they are cut off: its answer has the outcome of the check, which no server
// knows alone. Rejected: a sync. A deposed leader answers it that has not learned of its end (a holder was valid 0.3 s
// too long in one of 20 partitions), and a leader answers it before it has applied what its followers have confirmed
// already (1 of 100 reads by a busy leader did not show a claim that was granted before). The cost is a write per read
// that must be fresh. Taking a free lock and releasing it need none; a client that renews sends one for all its locks.
//
// A server is asked for an unused session before it is shown ours. A server that takes over a session grants
// it a new timeout, at most its own maxSessionTimeout, and the ensemble applies that even if the reply is lost. The
// cost is two writes per reconnect. Rejected: trusting less during each reconnect, which would lose leases at every
// short cut; trusting the reply alone, which allows two holders if it is lost.
//
// The note of a broken claim is an ephemeral node of a session that is left to expire. Nobody has to remove
// it, and it needs no server that supports nodes with a TTL. It is under the lock's own node, where a client that may
// break a claim may certainly write.
//
// ZooKeeper's plain layout, one ephemeral node per lock, is for excluding clients that use one (hand-written locks,
// leader nodes as in Hadoop and Kafka), and for nothing else: a release wakes all waiters, each of which sends three
// requests, and there is no order. A delete compares the version of the data, which starts again with each node, so a
// late delete could remove another client's lock. Therefore each claim has a ticket: a second node with a name that is
// never used again, made and removed in one step with the lock's node. In this layout a lock's name is one element of
// the path, with its slashes as %2F, because an ephemeral node has no children.
package zookeeper

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Options say how a store reaches its servers and how it names its nodes. The zero value and nil mean the defaults.
type Options struct {
	// Namespace precedes all names, as Curator's namespace does: with "app" the lock a is /app/a. It may have
	// slashes. A listing of locks goes through all nodes below it.
	Namespace string
	// Layout is how a lock is stored in the ensemble. All users of a lock must use layouts that see each other.
	// Default: LayoutCurator.
	Layout Layout
	// Auth are the credentials, which each server is given before anything else.
	Auth []Auth
	// ACL is set on each node that is created. Default: OnlyCreator if there is an Auth, else Anyone.
	ACL []ACL
	// TLS, if set, encrypts the connections. The servers' certificates are checked for its ServerName, or else for
	// the host.
	TLS *tls.Config
	// Dial, if set, makes the connections, for instance through a proxy, and looks up the names. TLS, if set, runs
	// over them.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Clock is for tests. Default: the machine's.
	Clock driver.Clock

	files  *driverutil.TLSFiles                                     // of the URL; nil: none
	lookup func(ctx context.Context, host string) ([]string, error) // net.Resolver's
}

// Auth is one credential, for instance of the scheme "digest" ("user:password").
type Auth struct{ Scheme, Credential string }

// ACL says who may do what with a node.
type ACL struct {
	Perms  int32  // a sum of 1 read, 2 write, 4 create, 8 delete, 16 administer
	Scheme string // world, auth, digest, ip, x509
	ID     string
}

// The usual values of Options.ACL.
var (
	Anyone      = []ACL{{allPerms, "world", "anyone"}} // every client may do everything
	OnlyCreator = []ACL{{allPerms, "auth", ""}}        // those with the credentials of the client that made the node
)

// store is a driver.Store on ZooKeeper.
type store struct {
	*sequence.Engine
	nodeStore *nodeStore
}

// New makes a store of connections of its own, which Close closes. The servers are host:port of the ensemble's
// servers, at least one. Port 2181 is the default. A name with several addresses means one server at each of them.
//
// New does no I/O, so the servers need not be reachable yet, and ctx is not used: the first claim connects. It
// returns ErrInvalid if no server is named or an option cannot work.
func New(ctx context.Context, servers []string, opts *Options) (driver.Store, error) {
	o, err := newSettings(servers, opts)
	if err != nil {
		return nil, err
	}
	switch o.Layout {
	case LayoutPlain:
		return newPlainStore(o), nil
	case LayoutCuratorSemaphore:
		return newSemaphoreStore(o), nil
	}
	t := newNodeStore(o)
	return &store{Engine: sequence.New(t), nodeStore: t}, nil
}

// NewTable gives access to bare records next to the locks, for data that is built on records but is no lock. Like New
// it does no I/O, and its connections are its own.
func NewTable(ctx context.Context, servers []string, opts *Options) (record.Table, error) {
	o, err := newSettings(servers, opts)
	if err != nil {
		return nil, err
	}
	t := newTable(newNodeStore(o), records)
	t.closeTree = t.t.Close
	return t, nil
}

// settings are options that were checked, with the defaults filled in.
type settings struct {
	Options
	servers []string // with their ports
}

// newSettings fills in defaults, and refuses options that cannot work.
func newSettings(servers []string, opts *Options) (settings, error) {
	o := settings{servers: slices.Clone(servers)}
	if opts != nil {
		o.Options = *opts
	}
	if len(servers) == 0 {
		return o, fmt.Errorf("%w: no ZooKeeper server is named: pass the host:port of at least one", driver.ErrInvalid)
	}
	for i, s := range servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			o.servers[i] = net.JoinHostPort(strings.Trim(s, "[]"), "2181")
		}
		if host, _, err := net.SplitHostPort(o.servers[i]); err != nil || host == "" {
			return o, fmt.Errorf("%w: a ZooKeeper server is host:port", driver.ErrInvalid)
		}
	}
	o.Layout = cmp.Or(o.Layout, LayoutCurator)
	if err := driverutil.CheckLayout(o.Layout, publicLayouts...); err != nil {
		return o, err
	}
	if err := checkAccess(&o.Options); err != nil {
		return o, err
	}
	if o.lookup == nil {
		o.lookup = net.DefaultResolver.LookupHost
	}
	if o.ACL == nil {
		o.ACL = Anyone
		if len(o.Auth) > 0 {
			o.ACL = OnlyCreator
		}
	}
	o.Namespace = strings.Trim(o.Namespace, "/")
	if o.Namespace != "" {
		if err := driver.CheckName(o.Namespace, driver.Info{MaxName: driver.MaxName}); err != nil {
			return o, fmt.Errorf("the namespace: %w", err)
		}
	}
	return o, nil
}

// allPerms is the sum of all permissions in an ACL.
const allPerms = 31

// checkAccess refuses credentials and ACLs that no server takes.
func checkAccess(o *Options) error {
	for _, a := range o.Auth {
		if a.Scheme == "" {
			return fmt.Errorf("%w: a credential needs a scheme, such as digest", driver.ErrInvalid)
		}
	}
	if o.ACL != nil && len(o.ACL) == 0 {
		return fmt.Errorf("%w: the ACL is empty: it must name at least one user, and nil means the default",
			driver.ErrInvalid)
	}
	for _, a := range o.ACL {
		if a.Perms <= 0 || a.Perms > allPerms || a.Scheme == "" {
			return fmt.Errorf("%w: an ACL has a scheme and permissions from 1 to %d, not %q and %d", driver.ErrInvalid,
				allPerms, a.Scheme, a.Perms)
		}
	}
	return nil
}

// Explain names the node that a claim would have, the TTL as the servers have granted it, if they were asked
// before, and which of Curator's recipes the claim would not keep out.
func (s *store) Explain(c driver.Claim) driver.Plan {
	path := s.nodeStore.pathOf(c.Name)
	end := s.nodeStore.layout.ending(c)
	keys := []string{path + "/_c_…" + end + "…"}
	if s.nodeStore.layout.secondEnding != nil {
		keys = append(keys, path+"/_c_…"+s.nodeStore.layout.secondEnding(c)+"…")
	}
	plan := driver.Plan{Keys: keys, TTL: s.nodeStore.grantedTTL(c.TTL)}
	if c.Kind != driver.KindRW && end == endLock {
		plan.Notes = []string{"Curator's InterProcessReadWriteLock keeps this out, but is not kept out by it; " +
			"a read-write lock is, and so is a mutex with layout=" + string(LayoutCuratorReadWrite)}
	}
	return plan
}

// redactedURL names an ensemble without its secrets.
func (o *settings) redactedURL() string {
	w := "zookeeper://" + strings.Join(o.servers, ",")
	if o.Namespace != "" {
		w += "/" + o.Namespace
	}
	return w
}
