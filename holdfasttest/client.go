package holdfasttest

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Client is a client whose way to the store is in the test's hand.
type Client struct {
	*holdfast.Client
	link *link
	told *told
}

// Partition cuts the client off: what it asks the store gets no answer and has no effect, until Heal.
func (c *Client) Partition() { c.link.set(cut) }

// Heal undoes Partition.
func (c *Client) Heal() { c.link.set(open) }

// Pause holds up what the client asks the store, until Resume; then it goes through, late, as that of a process that
// was stopped. Its deadlines pass as ever.
func (c *Client) Pause() { c.link.set(paused) }

// Resume undoes Pause.
func (c *Client) Resume() { c.link.set(open) }

func (c *Client) restore() { c.link.set(open) }

// link is the way to the records.
type link struct {
	record.Table

	mu      sync.Mutex
	state   state
	changed chan struct{} // closed when the state changes
}

type state int

const (
	open state = iota
	cut
	paused
)

var errNoAnswer = errors.New("the client was cut off from the store by its test")

func newLink(t record.Table) *link { return &link{Table: t, changed: make(chan struct{})} }

func (l *link) set(s state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	close(l.changed)
	l.changed = make(chan struct{})
}

// pass lets a request through, late, or not at all.
func (l *link) pass(ctx context.Context) error {
	lost := false
	for {
		l.mu.Lock()
		state, changed := l.state, l.changed
		l.mu.Unlock()
		lost = lost || state == cut
		switch {
		case state == open && lost:
			return errNoAnswer
		case state == open:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *link) Load(ctx context.Context, name string) (record.Row, error) {
	if err := l.pass(ctx); err != nil {
		return record.Row{}, err
	}
	return l.Table.Load(ctx, name)
}

func (l *link) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if err := l.pass(ctx); err != nil {
		return record.Row{}, err
	}
	return l.Table.Swap(ctx, row)
}

func (l *link) Delete(ctx context.Context, row record.Row) error {
	if err := l.pass(ctx); err != nil {
		return err
	}
	return l.Table.Delete(ctx, row)
}

func (l *link) List(ctx context.Context, prefix string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		if err := l.pass(ctx); err != nil {
			yield(record.Row{}, err)
			return
		}
		l.Table.List(ctx, prefix)(yield)
	}
}

func (l *link) Wait(ctx context.Context, name, version string) error {
	if err := l.pass(ctx); err != nil {
		return err
	}
	if err := l.Table.(record.Notifier).Wait(ctx, name, version); err != nil {
		return err
	}
	return l.pass(ctx)
}

// maxEndings is how many endings a client may be behind; those beyond are told by the next renewal.
const maxEndings = 64

// told is a store whose client is told of ends at once, by the test.
type told struct {
	driver.Store
	granted sync.Map // ids of this client's claims
	endings chan driver.Ending
}

func (s *told) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := s.Store.Acquire(ctx, c)
	if err == nil {
		s.granted.Store(g.ID, true)
	}
	return g, err
}

func (s *told) Release(ctx context.Context, c driver.Claim, ref string) error {
	s.granted.Delete(c.ID)
	return s.Store.Release(ctx, c, ref)
}

// tell queues an ending, if it is of a claim of this client's.
func (s *told) tell(e driver.Ending) {
	if _, mine := s.granted.LoadAndDelete(e.ID); !mine {
		return
	}
	select {
	case s.endings <- e:
	default:
	}
}

func (s *told) NextEnding(ctx context.Context) (driver.Ending, error) {
	select {
	case e := <-s.endings:
		return e, nil
	case <-ctx.Done():
		return driver.Ending{}, ctx.Err()
	}
}

func (s *told) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return s.Store.(driver.Detacher).Detach(ctx, g, keep)
}

func (s *told) SetWeight(ctx context.Context, g driver.Grant, weight int64) error {
	return s.Store.(driver.WeightChanger).SetWeight(ctx, g, weight)
}
