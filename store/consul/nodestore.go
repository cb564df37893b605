package consul

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// nodeStore is Consul as a sequence.NodeStore. A session is one of Consul's, a claim is a key that is bound to it, the
// order is the order of create indexes, and every step is one transaction.
//
// Reads ask for consistency: by default a leader that was replaced, and does not know it yet, may still answer them.
type nodeStore struct {
	sequence.Unsupported

	client     *api.Client
	web        *httpclient.Client // sends its requests
	transport  *http.Transport
	opts       Options
	info       driver.Info
	life       *driverutil.Lifetime
	datacenter string // empty: that of the agent
	isPlain    bool   // the agent is on another machine, and the connection is not encrypted

	// Watches wait for a place each: see Watch.
	waiterWatches, holderWatches watchPlaces

	mu          sync.Mutex
	gates       map[string]int64 // by session: the last known index of its gate
	versions    map[string]int64 // by key: the last known versions of claims that this client has changed
	ownSessions map[string]bool  // those of this client's claims, until they end; without those of detached claims
	hasOpened   bool             // a session, at least once
	minTTL      time.Duration    // the smallest that the servers grant, as far as they have said
	micros      int64            // the largest that Now has returned
}

// Traits has ReusesNumbers because the servers keep an entry in memory of each key that was deleted, for 15 minutes,
// and every read of a lock goes through all entries of its keys.
func (t *nodeStore) Traits() sequence.Traits {
	return sequence.Traits{Moves: true, LeavesNotes: true, ReportsTokens: true, ReusesNumbers: true}
}

// maxClaims is how many holders a lock may have, and how many waiters: each claim that comes reads all others, as text.
const maxClaims = 64

// newNodeStore makes the store of one Consul client. It sends no request.
func newNodeStore(config *api.Config, opts *Options) (*nodeStore, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	client, web, transport, err := newClient(config, o)
	if err != nil {
		return nil, err
	}
	t := &nodeStore{
		client: client, web: web, transport: transport, opts: o, life: driverutil.NewLifetime(),
		gates: map[string]int64{}, versions: map[string]int64{}, ownSessions: map[string]bool{},
		datacenter: config.Datacenter,
	}
	t.waiterWatches = watchPlaces{life: t.life, free: maxWaiterWatches}
	t.holderWatches = watchPlaces{life: t.life, free: maxHolderWatches}
	where, isPlain := describeAgent(config)
	t.isPlain = isPlain
	t.info = driver.Info{
		Store: where + "/" + o.Prefix, Clock: o.Clock, Tier: driver.TierFenceSafe,
		Survives:        driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenRegression: "the servers are restored from a snapshot, wiped, or replaced by others",
		MaxHolders:      maxClaims, MaxWaiters: maxClaims,
		Abilities: driver.Abilities{Ledger: true},
	}
	return t, nil
}

func (t *nodeStore) Info() driver.Info { return t.info }

// List is one read, always in full.
func (t *nodeStore) List(ctx context.Context, name string, _ bool) (sequence.Snapshot, error) {
	dir := t.lockDir(name)
	pairs, err := t.readTree(ctx, dir)
	if err != nil {
		return sequence.Snapshot{}, err
	}
	return newSnapshot(name, pairs, len(dir)), nil
}

// Read is one read for each 64 nodes.
func (t *nodeStore) Read(ctx context.Context, refs []sequence.NodeRef) ([]sequence.Node, error) {
	nodes := make([]sequence.Node, 0, len(refs))
	for some := range slices.Chunk(refs, maxOps) {
		ops := make([]*api.TxnOp, len(some))
		for i, r := range some {
			ops[i] = op(api.KVGetOrEmpty, t.lockDir(r.Name)+r.Key)
		}
		pairs, _, err := t.commit(ctx, ops...)
		if err != nil {
			return nil, err
		}
		for _, r := range some {
			dir := t.lockDir(r.Name)
			n, _ := parseNode(findPair(pairs, dir+r.Key), len(dir)) // without a session there is no node
			nodes = append(nodes, n)
		}
	}
	return nodes, nil
}

// Walk is one read: Consul has no pages.
func (t *nodeStore) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Snapshot, error] {
	return func(yield func(sequence.Snapshot, error) bool) {
		pairs, err := t.readTree(ctx, t.opts.Prefix+encodePrefix(prefix))
		if err != nil {
			yield(sequence.Snapshot{}, err)
			return
		}
		found := map[string]api.KVPairs{}
		for _, kv := range pairs {
			end := strings.LastIndex(kv.Key, claimFolder)
			if end < len(t.opts.Prefix) {
				continue
			}
			if name, ok := decodeName(kv.Key[len(t.opts.Prefix):end]); ok && strings.HasPrefix(name, prefix) {
				found[name] = append(found[name], kv)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			if l := newSnapshot(name, found[name], len(t.lockDir(name))); len(l.Nodes) > 0 && !yield(l, nil) {
				return
			}
		}
	}
}

// Close ends the watches, and closes the connections.
func (t *nodeStore) Close() error {
	t.life.End()
	t.life.Wait()
	t.transport.CloseIdleConnections()
	return nil
}
