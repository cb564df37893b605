package postgres

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
)

// listener hears of changes on a connection of its own, which is there while anybody waits and a while longer. Before
// somebody waits for a lock, it takes the shared advisory lock of the name's bucket, by which writers know that they have
// to tell: a writer that had the bucket alone has committed by then, and the look that follows sees its row.
type listener struct {
	lanes *lanes
	place *place
	life  context.Context
	end   context.CancelFunc

	mu      sync.Mutex
	seats   map[string]map[*seat]bool // by name
	wanted  map[int32]*interest       // by bucket
	poke    context.CancelFunc        // interrupts the waiting for notifications; nil while nobody does
	on      bool                      // a goroutine runs
	lonely  time.Duration             // how long the connection is kept when nothing is waited for
	running sync.WaitGroup
}

// interest is what is waited for in a bucket.
type interest struct {
	seats int
	since time.Time     // when the last one left
	live  chan struct{} // closed when the lock is there
}

// seat is one who waits.
type seat struct {
	told chan struct{} // closed
	once sync.Once
}

func (s *seat) tell() { s.once.Do(func() { close(s.told) }) }

const (
	linger    = 5 * time.Second  // how long a bucket's lock is kept after the last one has left
	lonely    = time.Minute      // how long the connection is kept after the last bucket's lock
	heartbeat = 10 * time.Second // how often a silent connection is tried
)

func newListener(l *lanes, p *place) *listener {
	n := &listener{lanes: l, place: p, seats: map[string]map[*seat]bool{}, wanted: map[int32]*interest{}, lonely: lonely}
	n.life, n.end = context.WithCancel(context.Background())
	return n
}

// Wait subscribes first and looks second.
func (t *table) Wait(ctx context.Context, name, version string) error {
	n := t.listener
	s, live := n.sit(name)
	if s == nil {
		return driver.ErrClosed
	}
	defer n.leave(name, s)
	select {
	case <-live:
	case <-s.told:
	case <-ctx.Done():
		return ctx.Err()
	case <-n.life.Done():
		return driver.ErrClosed
	}
	if r, err := t.Load(ctx, name); err != nil || r.Version != version {
		return err
	}
	select {
	case <-s.told:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-n.life.Done():
		return driver.ErrClosed
	}
}

func (n *listener) sit(name string) (*seat, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life.Err() != nil {
		return nil, nil
	}
	s := &seat{told: make(chan struct{})}
	if n.seats[name] == nil {
		n.seats[name] = map[*seat]bool{}
	}
	n.seats[name][s] = true
	b := bucket(name)
	w := n.wanted[b]
	if w == nil {
		w = &interest{live: make(chan struct{})}
		n.wanted[b] = w
		if n.poke != nil {
			n.poke()
		}
	}
	w.seats++
	if !n.on {
		n.on = true
		n.running.Go(n.run)
	}
	return s, w.live
}

func (n *listener) leave(name string, s *seat) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.seats[name], s)
	if len(n.seats[name]) == 0 {
		delete(n.seats, name)
	}
	if w := n.wanted[bucket(name)]; w != nil {
		w.seats--
		w.since = time.Now()
	}
}

func (n *listener) close() {
	n.mu.Lock()
	n.end()
	n.mu.Unlock()
	n.running.Wait()
}

// run keeps a connection while anybody waits.
func (n *listener) run() {
	for tries := 0; ; tries++ {
		heard := n.listen()
		n.mu.Lock()
		for _, seats := range n.seats {
			for s := range seats {
				s.tell() // what has happened meanwhile was not heard
			}
		}
		for b, w := range n.wanted {
			if w.seats == 0 {
				delete(n.wanted, b)
			} else {
				w.live = make(chan struct{})
			}
		}
		if n.life.Err() != nil || len(n.wanted) == 0 {
			n.on = false
			n.mu.Unlock()
			return
		}
		n.mu.Unlock()
		if heard {
			tries = 0
		}
		select {
		case <-time.After(rand.N(50 * time.Millisecond << min(tries, 6))):
		case <-n.life.Done():
		}
	}
}

// listen connects and serves until something goes wrong, or nobody has waited for long. It reports whether it came to listen
// at all.
func (n *listener) listen() (heard bool) {
	config := n.lanes.pool.Config()
	config.ConnConfig.OnNotification = nil // the user's would get what is for us
	// Each of several servers has its time, also behind one that is silent.
	ctx, cancel := context.WithTimeout(n.life, n.lanes.timeout*time.Duration(1+len(config.ConnConfig.Fallbacks)))
	if c := config.ConnConfig; c.ConnectTimeout == 0 || c.ConnectTimeout > n.lanes.timeout {
		c.ConnectTimeout = n.lanes.timeout
	}
	var c *pgx.Conn
	var err error
	if config.BeforeConnect != nil {
		err = config.BeforeConnect(ctx, config.ConnConfig)
	}
	if err == nil {
		c, err = pgx.ConnectConfig(ctx, config.ConnConfig)
	}
	if err == nil {
		_, err = c.Exec(ctx, "listen "+n.place.channel)
	}
	cancel()
	if c != nil {
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), n.lanes.timeout/10)
			defer cancel()
			_ = c.Close(ctx)
		}()
	}
	if err != nil {
		return false
	}
	wanted := time.Now() // when anything was last waited for
	for last := time.Now(); n.subscribe(c) == nil; {
		heard = true
		if n.idle() {
			if time.Since(wanted) > n.lonely {
				break
			}
		} else {
			wanted = time.Now()
		}
		told, err := n.next(c)
		if err != nil {
			break
		}
		if told {
			last = time.Now()
		} else if time.Since(last) > heartbeat {
			if n.exec(c, "select 1") != nil {
				break
			}
			last = time.Now()
		}
	}
	return heard
}

// idle reports whether nothing is waited for, and has not been for a while.
func (n *listener) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.wanted) == 0
}

func (n *listener) exec(c *pgx.Conn, text string, args ...any) error {
	ctx, cancel := context.WithTimeout(n.life, n.lanes.timeout)
	defer cancel()
	_, err := c.Exec(ctx, text, append([]any{pgx.QueryExecModeExec}, args...)...)
	return err
}

// subscribe takes the locks of buckets that are newly wanted, and gives back those that nobody has wanted for a while.
func (n *listener) subscribe(c *pgx.Conn) error {
	var take, leave []int32
	var live []chan struct{}
	n.mu.Lock()
	for b, w := range n.wanted {
		select {
		case <-w.live:
			if w.seats == 0 && time.Since(w.since) > linger {
				leave = append(leave, b)
				delete(n.wanted, b)
			}
		default:
			take, live = append(take, b), append(live, w.live)
		}
	}
	n.mu.Unlock()
	if len(take) > 0 {
		if err := n.exec(c, "select pg_advisory_lock_shared($1, b) from unnest($2::int4[]) b", n.place.class, take); err != nil {
			return err
		}
		for _, l := range live {
			close(l)
		}
	}
	if len(leave) > 0 {
		return n.exec(c, "select pg_advisory_unlock_shared($1, b) from unnest($2::int4[]) b", n.place.class, leave)
	}
	return nil
}

// next waits for a notification and passes it on. It returns with none when there is something to subscribe to, and from
// time to time.
func (n *listener) next(c *pgx.Conn) (told bool, err error) {
	ctx, cancel := context.WithTimeout(n.life, linger)
	defer cancel()
	n.mu.Lock()
	n.poke = cancel
	for _, w := range n.wanted {
		select {
		case <-w.live:
		default:
			cancel()
		}
	}
	n.mu.Unlock()
	m, err := c.WaitForNotification(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.poke = nil
	if m != nil {
		for s := range n.seats[m.Payload] {
			s.tell()
		}
		return true, nil
	}
	if c.IsClosed() || n.life.Err() != nil {
		return false, err
	}
	return false, nil
}
