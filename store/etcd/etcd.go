// Package etcd keeps locks in an etcd cluster: as keys in the layout of etcd's own lock clients, so that they exclude us
// and are excluded by us.
//
//	import _ "github.com/holdfast-go/holdfast/store/etcd"
//
//	client, err := holdfast.Open(ctx, "etcd://user:password@host1:2379,host2:2379?tls=true&prefix=locks/", nil)
//
// Programs that have an etcd client of their own hand that in:
//
//	client, err := holdfast.New(etcd.New(cli, nil), nil)
//
// # Layout
//
// A claim on the lock NAME is the key NAME/LEASE, where LEASE is the id of an etcd lease in lower-case hex, as
// etcdctl lock, Go's concurrency.Mutex, jetcd and the lock service of the server have it; further claims of the same client
// are NAME/LEASE.1, NAME/LEASE.2 and so on, and no number is used twice. The value says kind, limit and weight of the
// claim, and who made it; foreign clients leave it empty, and such a key counts as an exclusive claim. The fencing token is
// the key's create revision.
//
// Keys under NAME/ that are not of this form, or have no lease, are no claims and are ignored here. Foreign clients do not
// ignore them: to concurrency.Mutex any key that starts with NAME/ is a waiter, so one on the lock a waits for those of the
// lock a/b, too. Do not nest the names of locks that such clients share.
//
// Two kinds of keys stand beside the claims. PREFIX, a zero byte, holdfast/LEASE is written when a claim was given up whose
// request had no answer: it keeps that request from taking effect later, and goes with the lease. PREFIX, a zero byte,
// holdfast/broken/CLAIM is written when a claim is broken by force, so that its holder is told, and goes with a lease of its
// own, the TTL of the claim and up to 10 s later. So a user of the cluster who is confined to a range of keys needs the whole
// range that starts with Options.Prefix, to read and write.
package etcd

import (
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Options are how a store uses a client. The zero value, and nil, are fine.
type Options struct {
	// Prefix starts all keys. It is put before the name as it is: "locks/" makes locks/NAME/LEASE. Empty: the name alone,
	// as foreign clients have it.
	Prefix string
	// Clock is for tests. Default: the machine's.
	Clock driver.Clock
}

// Store is a driver.Store on etcd. It implements all optional interfaces of package driver.
type Store struct {
	*sequence.Engine
	tree *tree
}

// New makes a store of a client, which stays the caller's: Close leaves it open. It does no I/O. The store talks over
// the client's connection directly: what is wrapped around its KV, Lease or Watcher, as by package namespace, is passed by;
// use Options.Prefix.
func New(cli *clientv3.Client, opts *Options) *Store {
	if opts == nil {
		opts = &Options{}
	}
	t := newTree(cli, *opts)
	return &Store{Engine: sequence.New(t), tree: t}
}

// Table keeps bare records beside the locks, for what is built on records but is no lock. It ends with the store, or when
// it is closed; the store goes on then.
func (s *Store) Table() record.Table { return newTable(s.tree) }

// Explain names the key that a claim would stand under; LEASE is the lease of its client and TTL. The cluster counts in
// whole seconds, and its own least TTL may be larger.
func (s *Store) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{Keys: []string{s.tree.dir(c.Name) + "LEASE"}, TTL: (c.TTL + time.Second - 1).Truncate(time.Second)}
}

// where names a cluster without its secrets.
func where(cli *clientv3.Client, prefix string) string {
	var hosts []string
	for _, e := range cli.Endpoints() {
		if _, host, ok := strings.Cut(e, "://"); ok {
			e = host
		}
		if i := strings.LastIndexByte(e, '@'); i >= 0 {
			e = e[i+1:]
		}
		hosts = append(hosts, e)
	}
	w := "etcd://" + strings.Join(hosts, ",")
	if prefix != "" {
		w += "/" + prefix
	}
	return w
}
