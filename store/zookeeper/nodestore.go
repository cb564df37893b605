package zookeeper

import (
	"context"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// nodeStore is ZooKeeper as a sequence.NodeStore. A lock is a container node, a claim is an ephemeral sequential child
// of it, and a session is a ZooKeeper session with a connection of its own.
//
// The protocol is in internal/zk. What is here is the recipe: how locks and claims are named (names.go), how claims
// are added, listed and removed (add.go, list.go, remove.go), and the few facts that are kept between requests:
//
//   - which adds have no answer yet, so that no claim is added twice (pendingAdds, reAdded);
//   - which nodes were read before, so that a list needs no request per node (cache.go);
//   - which claims have a second node (secondNodes), in the layout for Curator and kazoo together.
//
// Requests that depend on what a session has sent before (Add, Withdraw, KeepAlive) go over that session. All others
// go over any session: over one of the engine's, or over one without claims while the engine has none.
type nodeStore struct {
	sequence.Unsupported

	opts     settings
	layout   claimEndings
	root     string // the namespace as a path, empty for none
	acl      []zk.ACL
	ensemble *zk.Ensemble
	info     driver.Info
	life     *driverutil.Lifetime

	mu          sync.Mutex
	sessions    map[string]*zk.Conn // the engine's sessions that have not ended
	defaultConn *zk.Conn
	// the one of them that serves all requests that need no session of their own
	readerConn    *zk.Conn          // without claims; serves them while the engine has no session
	endedSessions map[string]bool   // the engine's sessions that have ended
	pendingAdds   map[claimKey]bool // an add was sent, and its answer has not come
	reAdded       map[claimKey]bool // claims that were added again after that: they may have a node too many
	cache         nodeCache
	secondNodes   map[string]string // of this client's claims that have two nodes: the second path by the first
	lastMicros    int64             // the largest time that Now has returned
}

// claimKey identifies a claim of this client.
type claimKey struct{ session, id string }

// newNodeStore makes the store of one ZooKeeper client. It sends no request.
func newNodeStore(o settings) *nodeStore {
	t := &nodeStore{opts: o, layout: layouts[o.Layout], sessions: map[string]*zk.Conn{}, endedSessions: map[string]bool{},
		pendingAdds: map[claimKey]bool{}, reAdded: map[claimKey]bool{},
		cache: nodeCache{byPath: map[string]*cachedNode{}}, secondNodes: map[string]string{},
		life: driverutil.NewLifetime()}
	if o.Namespace != "" {
		t.root = t.pathOf(o.Namespace)
	}
	for _, a := range o.ACL {
		t.acl = append(t.acl, zk.ACL(a))
	}
	t.ensemble = zk.NewEnsemble(t.life, t.zkConfig())
	t.info = driver.Info{
		Store: o.redactedURL(), Clock: o.Clock, Tier: driver.TierFenceSafe,
		Survives:        driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenRegression: "the ensemble is restored from a snapshot, wiped, or replaced by another one",
		Abilities:       driver.Abilities{Forget: true, Ledger: true},
	}
	if t.layout.secondEnding != nil || o.Layout == LayoutKazoo || o.Layout == LayoutCuratorReadWrite {
		t.info.Kinds = []driver.Kind{driver.KindMutex, driver.KindRW}
	}
	return t
}

func (t *nodeStore) Info() driver.Info { return t.info }

// Traits lacks Moves: an ephemeral node cannot outlive its session.
func (t *nodeStore) Traits() sequence.Traits {
	return sequence.Traits{ReadsNext: true, LeavesNotes: true, ReportsTokens: true}
}

// zkConfig says how the servers are reached.
func (t *nodeStore) zkConfig() zk.Config {
	o := &t.opts
	config := zk.Config{Servers: o.servers, TLS: o.TLS, Dial: o.Dial, Lookup: o.lookup, SessionEnded: t.forgetSession}
	if o.files != nil {
		config.Handshake = o.files.Handshake
	}
	for _, a := range o.Auth {
		config.Auth = append(config.Auth, zk.Auth(a))
	}
	return config
}

// read sends reads by any session, and never returns answers older than what this client has seen already: if the
// answers must be fresh, or the server is behind that, a [zk.Barrier] precedes them.
//
// ZooKeeper promises a session that it never goes back in time, even on another server ("Single System Image" in the
// Programmer's Guide). That holds for one session, and this client has several: a read by one may go to a server that
// has not learned of what another session has written. So the answers are compared with the last transaction that any
// of them has seen.
func (t *nodeStore) read(ctx context.Context, fresh bool, makeReads func() []*zk.Call) ([]*zk.Call, *zk.Conn, error) {
	for {
		c, err := t.anyConn(ctx)
		if err == zk.ErrSessionExpired && t.life.Err() == nil {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		lastSeen := t.ensemble.LastSeen()
		calls, err := c.Retry(ctx, func() []*zk.Call {
			if fresh {
				return append([]*zk.Call{zk.Barrier()}, makeReads()...)
			}
			return makeReads()
		})
		switch {
		case err == zk.ErrSessionExpired && t.life.Err() == nil:
			continue // another session will do as well
		case err != nil:
			return nil, nil, err
		case fresh:
			return calls[1:], c, calls[0].BarrierError()
		case calls[0].Zxid >= lastSeen:
			return calls, c, nil
		}
		fresh = true // the server is behind
	}
}

// readFresh sends a read by one session. Its answer shows the effect of all that the session has sent before, and of
// all that any client was told before.
func readFresh(ctx context.Context, c *zk.Conn, read *zk.Call) error {
	barrier := zk.Barrier()
	if err := c.Do(ctx, barrier, read); err != nil {
		return err
	}
	return barrier.BarrierError()
}

// write sends a write by any session, once. It may be any session, because no step of a lock depends on who sends it,
// except those that create ephemeral nodes; the conditions are in the request.
func (t *nodeStore) write(ctx context.Context, w *zk.Write) error {
	for {
		c, err := t.anyConn(ctx)
		if err == nil {
			err = c.Write(ctx, w)
		}
		// The session that has ended is not the node's own: the outcome for the node is not known.
		if err == zk.ErrSessionExpired && t.life.Err() == nil {
			if !w.Calls[0].WasSent() {
				continue // by another session, which does the same
			}
			// The engine must not conclude from the end of this session that the claim's session has ended.
			return zk.ErrLinkBroken
		}
		return err
	}
}

// Close closes the connections. It leaves the engine's sessions to expire.
func (t *nodeStore) Close() error {
	t.mu.Lock()
	reader := t.readerConn
	t.mu.Unlock()
	if reader != nil && reader.HasLink() {
		t.closeUnused(reader)
	}
	t.life.End()
	t.life.Wait()
	return nil
}
