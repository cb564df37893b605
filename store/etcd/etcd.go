// Package etcd keeps locks in an etcd cluster. It uses the key layout of etcd's own lock clients, so that locks taken
// with them and with this package exclude each other.
//
//	import _ "github.com/holdfast-go/holdfast/store/etcd"
//
//	client, err := holdfast.Open(ctx, "etcd://user:password@host1:2379,host2:2379?tls=true&prefix=locks/", nil)
//
// Programs that have an etcd client of their own pass it in:
//
//	store, err := etcd.New(ctx, cli, nil)
//	client, err := holdfast.New(store, nil)
//
// # Layout
//
// A claim on the lock NAME is the key NAME/LEASE, where LEASE is the ID of an etcd lease in lower-case hex, as with
// etcdctl lock, Go's concurrency.Mutex, jetcd and the lock service of the server. Further claims of the same client
// are NAME/LEASE.1, NAME/LEASE.2 and so on. Once a claim has gone, another one may get its key. The value says the
// kind, limit and weight of the claim, and who made it. Foreign clients leave it empty, and such a key counts as an
// exclusive claim. The fencing token is the key's create revision.
//
// Keys under NAME/ that have another form, or no lease, are not claims and are ignored here. Foreign clients do not
// ignore them: to concurrency.Mutex every key that starts with NAME/ is a waiter, so one on the lock a waits for
// those of the lock a/b, too. Do not nest the names of locks that you share with such clients.
//
// There are two kinds of keys next to the claims:
//
//   - PREFIX, a zero byte, holdfast/LEASE is written when a claim is given up whose request got no reply. It keeps
//     that request from taking effect later, and is deleted with the lease.
//   - PREFIX, a zero byte, holdfast/broken/CLAIM is written when a claim is broken by force, so that its holder
//     learns of it. It is deleted with a lease of its own, the claim's TTL and up to 10 s later.
//
// The run ledger has keys of its own: PREFIX, a zero byte, holdfast/run/KEY is the history of a key, and
// holdfast/runmark/KEY exists while a run is in progress, under a lease that expires with the run.
//
// So a user of the cluster whose role is limited to a range of keys needs the whole range that starts with
// Options.Prefix, for reading and writing.
//
// # Decisions
//
// Our own watch stream and keep-alives, on the connection of the user's client. Ten thousand watches cost two
// goroutines, no watch starts at a past revision (the server delays those), and the moment at which a keep-alive is
// sent is known. The price: wrappers around the client's interfaces are bypassed. Rejected: the client's Watcher and
// Lease.
//
// The range of a lock contains the locks whose names begin with its name and a slash, because etcd's own clients
// use prefixes, and a compare knows only ranges. So an upgrade among nested names can be refused by claims on another
// lock. It is tried eight times, then it reports that the lock is held.
//
// The heartbeat interval cannot be asked for, but the margin of a TTL must cover one. The smallest TTL that a
// cluster grants reveals its election timeout, and so the longest interval that it can have. Holdfast warns by that,
// and refuses no TTL.
//
// A gate key per session. Ten thousand canceled acquires leave no keys. Rejected: a tombstone per claim.
package etcd

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Options are the settings of a store. The zero value and nil mean the defaults.
type Options struct {
	// Prefix starts all keys. It is put before the name unchanged: "locks/" makes locks/NAME/LEASE. If it is empty,
	// keys start with the name, as those of foreign clients do. It is UTF-8 without a zero byte.
	Prefix string
	// TLS is the TLS configuration of the client. Only holdfast.Ledger.CurrentSlot needs it: it asks a member for its
	// time by HTTPS, and a client does not tell its configuration. Default: members are asked by plain HTTP.
	TLS *tls.Config
	// Clock is for tests. Default: the clock of this machine.
	Clock driver.Clock

	files      *driverutil.TLSFiles // of the URL; nil: none
	handshakes *handshaker          // with these files
	secrets    []driverutil.SecretSource
}

// store is a driver.Store on etcd.
type store struct {
	*sequence.Engine
	nodes *nodeStore
}

// New makes a store on a client. The client stays the caller's: Close does not close it. The store uses the client's
// connection directly, so wrappers around its KV, Lease or Watcher, such as those of package namespace, have no effect;
// use Options.Prefix.
//
// New does no I/O, so the cluster need not be reachable, and ctx is not used: the first claim connects. It returns
// ErrInvalid if the client is nil or an option cannot work.
func New(ctx context.Context, client *clientv3.Client, opts *Options) (driver.Store, error) {
	nodes, err := openNodeStore(client, opts)
	if err != nil {
		return nil, err
	}
	return newStore(nodes), nil
}

// NewTable gives access to bare records next to the locks, for data that is built on records but is no lock. Like New
// it does no I/O, its Close leaves the client open, and its errors are the same.
func NewTable(ctx context.Context, client *clientv3.Client, opts *Options) (record.Table, error) {
	nodes, err := openNodeStore(client, opts)
	if err != nil {
		return nil, err
	}
	t := newTable(nodes, recordFolder)
	t.closeNodes = nodes.Close
	return t, nil
}

func newStore(nodes *nodeStore) *store { return &store{Engine: sequence.New(nodes), nodes: nodes} }

// openNodeStore checks what it is given, and does no I/O.
func openNodeStore(client *clientv3.Client, opts *Options) (*nodeStore, error) {
	if client == nil {
		return nil, fmt.Errorf("%w: the client is nil: pass one that clientv3.New has made", driver.ErrInvalid)
	}
	if opts == nil {
		opts = &Options{}
	}
	if err := checkPrefix(opts.Prefix); err != nil {
		return nil, err
	}
	return newNodeStore(client, *opts), nil
}

func checkPrefix(prefix string) error {
	if strings.ContainsRune(prefix, 0) || !utf8.ValidString(prefix) {
		return fmt.Errorf("%w: a prefix is UTF-8 without a zero byte", driver.ErrInvalid)
	}
	return nil
}

// Explain names the key of a claim; LEASE means the lease of its client and TTL. The TTL is rounded up to whole
// seconds, and the cluster may grant more if its own smallest TTL is larger.
func (s *store) Explain(c driver.Claim) driver.Plan {
	ttl := (c.TTL + time.Second - 1).Truncate(time.Second)
	return driver.Plan{Keys: []string{s.nodes.lockDir(c.Name) + "LEASE"}, TTL: ttl}
}

// describeCluster names a cluster without its secrets.
func describeCluster(cli *clientv3.Client, prefix string) string {
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
