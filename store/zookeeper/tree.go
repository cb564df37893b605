package zookeeper

import (
	"context"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// tree is ZooKeeper as a sequence.Tree. A lock is a container node, a claim an ephemeral sequential child of it, and a session a
// session with a connection of its own.
type tree struct {
	opts   Options
	layout layout
	root   string // the namespace as a path, empty for none
	info   driver.Info
	life   context.Context
	end    context.CancelFunc
	work   sync.WaitGroup

	mu          sync.Mutex
	sessions    map[string]*conn          // those of the engine that are not over
	lead        *conn                     // the one of them by which everything else is asked
	reader      *conn                     // one without claims, for when there is none
	ended       map[string]bool           // sessions of the engine that are over
	floor       int64                     // the last transaction that this client knows of
	doubts      map[[2]string]bool        // by session and claim: an add was sent and its answer not heard
	anew        map[[2]string]bool        // so, and it was added again: it may stand twice
	known       map[string]*sequence.Node // by path
	twins       map[string]string         // of this client's claims that stand: by path the path of the second node
	knownMost   int                       // how many of them there may be before others' are forgotten
	micros      int64                     // the largest that Now has given
	addresses   map[string][]string       // of the servers, by name, when they were last looked up
	lastTrouble error
}

func newTree(o Options) *tree {
	t := &tree{opts: o, layout: layouts[o.Layout], sessions: map[string]*conn{}, doubts: map[[2]string]bool{}, anew: map[[2]string]bool{},
		ended: map[string]bool{}, known: map[string]*sequence.Node{}, twins: map[string]string{}, addresses: map[string][]string{}}
	if o.Namespace != "" {
		t.root = t.pathOf(o.Namespace)
	}
	t.life, t.end = context.WithCancel(context.Background())
	t.info = driver.Info{
		Store: o.where(), Clock: o.Clock, Tier: driver.TierFenceSafe,
		Survives:        driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenRegression: "the ensemble is restored from a snapshot, wiped, or replaced by another one",
	}
	if t.layout.twin != nil || o.Layout == LayoutKazoo || o.Layout == LayoutCuratorReadWrite {
		t.info.Kinds = []driver.Kind{driver.KindMutex, driver.KindRW}
	}
	return t
}

func (t *tree) Info() driver.Info { return t.info }

// spawn runs f beside the caller, unless the tree is closed.
func (t *tree) spawn(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.life.Err() == nil {
		t.work.Go(f)
	}
}

func (t *tree) saw(zxid int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.floor = max(t.floor, zxid)
}

// read asks by any session, and never gives an answer older than what this client has seen: when it
// has to be fresh, or the server lags behind that, a sync goes ahead.
func (t *tree) read(ctx context.Context, fresh bool, ask func() []*call) ([]*call, *conn, error) {
	for {
		c, err := t.anyConn(ctx)
		if err == sequence.ErrSessionExpired && t.life.Err() == nil {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		t.mu.Lock()
		floor := t.floor
		t.mu.Unlock()
		calls, err := c.ask(ctx, func() []*call {
			if fresh {
				return append([]*call{syncCall()}, ask()...)
			}
			return ask()
		})
		switch {
		case err == sequence.ErrSessionExpired && t.life.Err() == nil:
			continue // another session serves as well
		case err != nil:
			return nil, nil, err
		case fresh && calls[0].err != nil:
			return nil, nil, calls[0].err
		case fresh:
			return calls[1:], c, nil
		case calls[0].zxid >= floor:
			return calls, c, nil
		}
		fresh = true
	}
}

// write sends a write by any session, once.
func (t *tree) write(ctx context.Context, w *write) error {
	for {
		c, err := t.anyConn(ctx)
		if err == nil {
			err = c.write(ctx, w)
		}
		// That session is not the node's: nothing was said of what this was about.
		if err == sequence.ErrSessionExpired && t.life.Err() == nil {
			if !w.calls[0].sent {
				continue // it was not even sent
			}
			return errBroken
		}
		return err
	}
}

// Close gives up the connections, and leaves the sessions to the servers: they end them when their time is over.
func (t *tree) Close() error {
	t.mu.Lock()
	reader := t.reader
	t.mu.Unlock()
	if reader != nil {
		if over, up := reader.state(); over == nil && up {
			t.leave(reader)
		}
	}
	t.mu.Lock()
	t.end()
	t.mu.Unlock()
	t.work.Wait()
	return nil
}
