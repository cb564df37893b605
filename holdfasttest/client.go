package holdfasttest

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Client is a holdfast.Client whose connection to the store is controlled by the test.
type Client struct {
	*holdfast.Client
	link     *link
	notifier *endingNotifier
}

// Partition cuts the client off from the store. Until Heal, its requests have no effect and get no reply.
func (c *Client) Partition() { c.link.setState(linkCut) }

// Heal undoes Partition. Requests that were made during the partition are lost.
func (c *Client) Heal() { c.link.setState(linkOpen) }

// Pause delays all requests of the client until Resume. They then arrive late, like those of a process that was stopped
// for a while. Deadlines of contexts pass meanwhile.
func (c *Client) Pause() { c.link.setState(linkPaused) }

// Resume undoes Pause.
func (c *Client) Resume() { c.link.setState(linkOpen) }

func (c *Client) openLink() { c.link.setState(linkOpen) }

// link is the way from one client to the store, which the test can cut or pause.
type link struct {
	mu      sync.Mutex
	state   linkState
	changed chan struct{} // closed when the state changes
}

type linkState int

const (
	linkOpen linkState = iota
	linkCut
	linkPaused
)

var errNoAnswer = errors.New("the client was cut off from the store by its test")

func newLink() *link { return &link{changed: make(chan struct{})} }

func (l *link) setState(s linkState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	close(l.changed)
	l.changed = make(chan struct{})
}

// passRequest returns when a request may continue. It fails if the link was cut at any time since the request was made:
// such a request has no effect and its caller gets no reply, so it waits until the link is open or ctx ends.
func (l *link) passRequest(ctx context.Context) error {
	lost := false
	for {
		l.mu.Lock()
		state, changed := l.state, l.changed
		l.mu.Unlock()
		lost = lost || state == linkCut
		switch {
		case state == linkOpen && lost:
			return errNoAnswer
		case state == linkOpen:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// linkedTable is a table at the end of a link.
type linkedTable struct {
	record.Table
	*link
}

// OpenLedgerTable opens the table of the run ledger, at the end of the same link.
func (l *linkedTable) OpenLedgerTable(ctx context.Context) (record.Table, error) {
	runs, err := l.Table.OpenLedgerTable(ctx)
	return &linkedTable{runs, l.link}, err
}

func (l *linkedTable) Load(ctx context.Context, name string) (record.Row, error) {
	if err := l.passRequest(ctx); err != nil {
		return record.Row{}, err
	}
	return l.Table.Load(ctx, name)
}

func (l *linkedTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if err := l.passRequest(ctx); err != nil {
		return record.Row{}, err
	}
	return l.Table.Swap(ctx, row)
}

func (l *linkedTable) Delete(ctx context.Context, row record.Row) error {
	if err := l.passRequest(ctx); err != nil {
		return err
	}
	return l.Table.Delete(ctx, row)
}

func (l *linkedTable) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		if err := l.passRequest(ctx); err != nil {
			yield(record.Row{}, err)
			return
		}
		l.Table.List(ctx, prefix, after)(yield)
	}
}

// Watcher notifies of each change that comes through the link.
func (l *linkedTable) Watcher() record.Watcher {
	watcher := l.Table.Watcher()
	return record.WatcherFunc(func(ctx context.Context, name, version string) error {
		if err := l.passRequest(ctx); err != nil {
			return err
		}
		watch := watcher.Watch(name)
		defer watch.Stop()
		if _, err := watch.Wait(ctx, version, record.Anywhere); err != nil {
			return err
		}
		return l.passRequest(ctx)
	})
}

// maxEndings is how many endings may be queued for a client. Of further ones it learns at its next renewal.
const maxEndings = 64

// endingNotifier is a store whose client is notified at once when the test ends one of its claims.
type endingNotifier struct {
	driver.Store
	granted sync.Map // ids of this client's claims
	endings chan driver.Ending
}

// Info returns the store's Info, and that it reports endings.
func (s *endingNotifier) Info() driver.Info {
	i := s.Store.Info()
	i.Abilities.Endings = true
	return i
}

func (s *endingNotifier) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := s.Store.Acquire(ctx, c)
	if err == nil {
		s.granted.Store(g.ID, true)
	}
	return g, err
}

func (s *endingNotifier) Release(ctx context.Context, c driver.Claim, ref string) error {
	s.granted.Delete(c.ID)
	return s.Store.Release(ctx, c, ref)
}

// notify queues an ending if it concerns a claim of this client.
func (s *endingNotifier) notify(e driver.Ending) {
	if _, mine := s.granted.LoadAndDelete(e.ID); !mine {
		return
	}
	select {
	case s.endings <- e:
	default:
	}
}

func (s *endingNotifier) NextEnding(ctx context.Context) (driver.Ending, error) {
	select {
	case e := <-s.endings:
		return e, nil
	case <-ctx.Done():
		return driver.Ending{}, ctx.Err()
	}
}
