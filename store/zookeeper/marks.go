package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// markName is the ephemeral child of a record that is its mark. So the number of the record's children tells whether it
// is marked, and one read tells all. The other child of a record has a longer name.
const markName = "mark"

// Traits say that the table of the ledger has marks.
func (tb *table) Traits() record.Traits { return record.Traits{Marks: tb.markSessions != nil} }

// keepMarks makes this a table with marks.
//
// A mark belongs to a session that lives by nothing but the transactions that write marks. Each renewal of a run
// deletes its mark and creates it again. A session writes marks for a third of a TTL, and is then left to expire, so
// that the mark of a run that its client has lost does not last for as long as that client has other runs.
func (tb *table) keepMarks() {
	clock := tb.t.info.Clock
	if clock.Monotonic == nil {
		clock = driver.SystemClock
	}
	tb.markSessions = &driverutil.Rotation[*zk.Conn]{
		Clock: clock, Make: tb.openMarkSession,
		// Its last transactions may still be waiting for their answers.
		Retire: func(c *zk.Conn) { time.AfterFunc(requestTimeout, c.Stop) },
	}
}

// openMarkSession opens a session that lasts for a run's TTL from each transaction on. A follower tells the leader
// twice per tick which sessions it has heard from. So the session lasts longer by half a tick, as far as the margin
// of the TTL does not cover that: see OpenSession.
func (tb *table) openMarkSession(ctx context.Context, ttl time.Duration) (*zk.Conn, error) {
	timeout := ttl + max(ttl/15, min(ttl/3, time.Second))
	timeout = (timeout + time.Millisecond - 1).Truncate(time.Millisecond) // the servers count in milliseconds
	c := tb.t.ensemble.NewConn(timeout, false)
	if !tb.t.life.Go(c.Run) {
		return nil, driver.ErrClosed
	}
	if err := callServer(ctx, c.WaitForLink); err != nil {
		c.Stop()
		if errors.Is(err, driver.ErrInvalid) {
			err = fmt.Errorf("a run with a TTL of %v needs a session of %v: %w", ttl, timeout, err)
		}
		return nil, err
	}
	return c, nil
}

// swapMarked is writeSteps with a change of the record's mark.
func (tb *table) swapMarked(ctx context.Context, r record.Row, path string, steps ...*zk.Call) error {
	mark, send := path+"/"+markName, tb.sendMulti
	switch {
	case r.Marked && r.MarkTTL == 0:
		steps = append(steps, zk.Check(mark, zk.AnyVersion))
	case r.Marked:
		steps = append(steps, zk.Delete(mark, zk.AnyVersion))
	}
	if r.MarkTTL > 0 {
		session, err := tb.markSessions.Get(ctx, r.MarkTTL)
		if err = tb.t.explainError(err, path); err != nil {
			if !driverutil.IsFinal(err) {
				err = fmt.Errorf("%w: %w", record.ErrUnsent, err)
			}
			return err
		}
		steps = append(steps, zk.CreateEphemeral(mark, nil, tb.t.acl))
		send = func(ctx context.Context, steps []*zk.Call) (zk.Code, error) {
			return tb.sendMarkedMulti(ctx, session, r.MarkTTL, steps)
		}
	}
	return tb.writeSteps(ctx, send, path, r.Version == "", steps...)
}

// sendMarkedMulti is the multiSender for changes with a mark. If the session has expired, the outcome is not known: the
// engine reads the record, and tries again by another session.
func (tb *table) sendMarkedMulti(
	ctx context.Context, session *zk.Conn, ttl time.Duration, steps []*zk.Call,
) (zk.Code, error) {
	multi := zk.Multi(steps...)
	err := callServer(ctx, func(ctx context.Context) error {
		return session.Write(ctx, &zk.Write{Calls: []*zk.Call{multi}, Alone: true})
	})
	switch {
	case err == zk.ErrSessionExpired:
		tb.markSessions.Drop(ctx, ttl, session)
		return zk.CodeOK, zk.ErrLinkBroken
	case err != nil:
		return zk.CodeOK, err
	}
	return readOutcome(multi)
}
