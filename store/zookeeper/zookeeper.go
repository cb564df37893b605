// Package zookeeper keeps locks in a ZooKeeper ensemble: as ephemeral sequential nodes in the layout of Curator's recipes, or
// of kazoo's, so that they exclude us and are excluded by us.
//
//	import _ "github.com/holdfast-go/holdfast/store/zookeeper"
//
//	client, err := holdfast.Open(ctx, "zookeeper://user:password@host1:2181,host2:2181?namespace=locks", nil)
//
// or, for programs,
//
//	store, err := zookeeper.New(zookeeper.Options{Servers: []string{"host1:2181", "host2:2181"}})
//	client, err := holdfast.New(store, nil)
//
// # Layout
//
// A claim on the lock NAME is an ephemeral sequential child of the node /NAMESPACE/NAME:
//
//	_c_ID-SESSION-KIND.LIMIT.WEIGHT-lock-0000000042
//
// It ends in lock- and the number, as the nodes of Curator's InterProcessMutex and go-zookeeper's Lock do; for a
// read-write lock it ends in __READ__ or __WRIT__ and the number, as those of Curator's InterProcessReadWriteLock do. Its data
// tells people who made it. The parents are containers, which the servers remove when they are empty. The fencing token is
// the transaction that made the node (czxid): the numbers are no tokens, since they begin anew with their parent.
//
// All that looks like a claim of Curator, go-zookeeper or kazoo counts as one; other children are ignored. Foreign claims are
// exclusive, but for foreign readers, which share with ours. Options.Layout says how our own claims are named, and so who sees
// them: kazoo does not see Curator's nodes, nor Curator kazoo's, and Curator's mutex and read-write lock do not see each other. So a
// mutex of ours that finds Curator's read-write lock on its path is refused with ErrMismatch: that would not be kept out in turn, and
// what comes when the mutex is held already is not. With [LayoutCuratorReadWrite] a mutex is one of its writers.
//
// The recipes are Curator's InterProcessMutex, InterProcessReadWriteLock and InterProcessSemaphoreV2, go-zookeeper's Lock, and kazoo's
// Lock, ReadLock and WriteLock. Curator's LeaderLatch and kazoo's Semaphore have nodes of their own: they do not see us, nor we them.
//
// Two other layouts carry less: [NewSemaphore] makes the permits of Curator's semaphore, and [NewPlain] locks that are one ephemeral
// node each.
//
// Two faults of theirs are not ours to mend: kazoo's ReadLock waits for writers behind it, who wait for it (2.8.0), and a
// writer of Curator's that becomes a reader has a new number, so that a writer who waited comes in beside it (5.4.0; where
// it keeps its number, as in later versions, we respect it).
//
// Characters that ZooKeeper does not take in a path are written as %XX, and so is %.
//
// # Sessions
//
// Each TTL that is used has a session of its own, with a connection of its own, which is renewed fifteen times within it: by a
// write that is sure to be refused, since the servers put that to their quorum. A sync, which is what other clients would use,
// is answered by a leader that was deposed and has not heard of it. A TTL beyond what the servers grant is refused; see
// minSessionTimeout and maxSessionTimeout there. Servers grant a time anew whenever a session comes to them over a new connection; so
// before that they are asked for another session, which costs the quorum two writes, and one that grants less is passed by, like one that is
// down. Where all do, the session is ended and its claims are told so. A TTL should be three of the servers' ticks at least: a follower tells the
// leader every half tick whom it has heard, and below that a holder may believe for up to a sixth of a tick too long.
package zookeeper

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Options are how a store reaches its servers and how it keeps its nodes.
type Options struct {
	// Servers are host:port of the ensemble's servers, one at least. Port 2181 is the default. A name with several addresses
	// stands for a server at each.
	Servers []string
	// Namespace is put before all names, as Curator's namespace is: with "app" the lock a is /app/a. It may have slashes. A
	// listing of locks goes through all nodes below it.
	Namespace string
	// Layout is LayoutCurator (the default), LayoutCuratorReadWrite, LayoutKazoo or LayoutBoth. For LayoutPlain there is NewPlain, for
	// LayoutCuratorSemaphore NewSemaphore.
	Layout string
	// Auth are the credentials, given to each server before anything else.
	Auth []Auth
	// ACL is set on each node that is made. Default: OnlyCreator if there is an Auth, else Anyone.
	ACL []ACL
	// TLS, if set, has the servers reached by TLS. The name that their certificates are checked for is ServerName, or else the
	// host.
	TLS *tls.Config
	// Dial, if set, makes the connections, for instance through a proxy. TLS is laid on top.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Clock is for tests. Default: the machine's.
	Clock driver.Clock

	lookup func(ctx context.Context, host string) ([]string, error) // net.Resolver's
}

// Auth is one credential, of the scheme "digest" for instance ("user:password").
type Auth struct{ Scheme, Credential string }

// ACL says who may do what with a node.
type ACL struct {
	Perms  int32  // a sum of 1 read, 2 write, 4 create, 8 delete, 16 administer
	Scheme string // world, auth, digest, ip, x509
	ID     string
}

// ACLs that are often wanted.
var (
	Anyone      = []ACL{{31, "world", "anyone"}}
	OnlyCreator = []ACL{{31, "auth", ""}}
)

// Store is a driver.Store on ZooKeeper. It implements all optional interfaces of package driver that it can keep.
type Store struct {
	*sequence.Engine
	tree *tree
}

// New makes a store. It does no I/O: the servers need not be there yet. An error Is ErrInvalid.
func New(o Options) (*Store, error) {
	if o.Layout == "" {
		o.Layout = LayoutCurator
	}
	if _, known := layouts[o.Layout]; !known {
		return nil, fmt.Errorf("%w: there is no layout %q; there are %s, %s, %s, %s and, for URLs, %s and %s", driver.ErrInvalid, o.Layout,
			LayoutCurator, LayoutCuratorReadWrite, LayoutKazoo, LayoutBoth, LayoutPlain, LayoutCuratorSemaphore)
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	t := newTree(o)
	return &Store{Engine: sequence.New(t), tree: t}, nil
}

// complete gives options what they leave open, and refuses what cannot be.
func (o Options) withDefaults() (Options, error) {
	o.Servers = slices.Clone(o.Servers)
	if len(o.Servers) == 0 {
		return o, fmt.Errorf("%w: no ZooKeeper server is named", driver.ErrInvalid)
	}
	for i, s := range o.Servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			o.Servers[i] = net.JoinHostPort(strings.Trim(s, "[]"), "2181")
		}
		if host, _, err := net.SplitHostPort(o.Servers[i]); err != nil || host == "" {
			return o, fmt.Errorf("%w: a ZooKeeper server is host:port", driver.ErrInvalid)
		}
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

// Table keeps bare records beside the locks, for what is built on records but is no lock. It ends with the store, or when
// it is closed; the store goes on then.
func (s *Store) Table() record.Table { return newTable(s.tree) }

// Explain names the node that a claim would stand under, the session time as the servers have granted it, if they were asked before, and
// whom of Curator's recipes the claim would not keep out.
func (s *Store) Explain(c driver.Claim) driver.Plan {
	path := s.tree.pathOf(c.Name)
	end := s.tree.layout.ending(c)
	keys := []string{path + "/_c_…" + end + "…"}
	if s.tree.layout.secondEnding != nil {
		keys = append(keys, path+"/_c_…"+s.tree.layout.secondEnding(c)+"…")
	}
	plan := driver.Plan{Keys: keys, TTL: s.tree.grantedTTL(c.TTL)}
	if c.Kind != driver.KindRW && end == endLock {
		plan.Notes = []string{"Curator's InterProcessReadWriteLock keeps this out, but is not kept out by it; a read-write lock is, and so is a mutex with layout=" + LayoutCuratorReadWrite}
	}
	return plan
}

// where names an ensemble without its secrets.
func (o *Options) redactedURL() string {
	w := "zookeeper://" + strings.Join(o.Servers, ",")
	if o.Namespace != "" {
		w += "/" + o.Namespace
	}
	return w
}
