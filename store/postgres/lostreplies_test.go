package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// throughLink opens a store through a link that can lose replies.
func throughLink(t *testing.T, s *pgtest.Server, url string) (driver.Store, *servertest.Link) {
	t.Helper()
	link, err := servertest.NewLink(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	return mustOpen(t, strings.Replace(url, s.Addr, link.Addr, 1)), link
}

// forceRelease ends the holder of a lock by force, like an operator.
func forceRelease(t *testing.T, st driver.Store, name string) {
	t.Helper()
	l, err := st.Inspect(t.Context(), name)
	if err == nil && len(l.Holders) == 1 {
		err = st.Break(t.Context(), name, l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce})
	}
	if err != nil {
		t.Fatalf("%+v %v", l, err)
	}
}

// TestHolderLearnsOfBreak: when an operator has ended a claim by force, its holder's renewal and release say so.
// This holds even if the first reply to the release is lost, and another claim has held the lock since. If no
// operator has ended the claim, such a release succeeds. The notes for this fit next to the longest names.
func TestHolderLearnsOfBreak(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	for _, layout := range []string{"", "shedlock"} {
		url := freshURL(t, s, "layout="+layout)
		operator := mustOpen(t, url)
		st, link := throughLink(t, s, url)
		for _, others := range []int{0, 1} { // claims that hold the lock in between
			name := fmt.Sprint("broken", others)
			g := acquire(t, st, mutexClaim(name, time.Minute))
			forceRelease(t, operator, name)
			for range others {
				c := mutexClaim(name, time.Minute)
				c.Owner, c.Meta = strings.Repeat("o", driver.MaxOwner), strings.Repeat("m", operator.Info().MaxMeta)
				acquire(t, operator, c)
			}
			if err := renewUntilKnown(t, st, g); lossOf(err) != driver.LossBroken {
				t.Errorf("layout %q, %d others: the renewal of a claim that was broken: %v", layout, others, err)
			}
			link.LoseReplies(1)
			if err := st.Release(t.Context(), g.Claim, ""); lossOf(err) != driver.LossBroken {
				t.Errorf("layout %q, %d others: the release of a claim that was broken: %v", layout, others, err)
			}
			name = fmt.Sprint("own", others)
			g = acquire(t, st, mutexClaim(name, time.Minute))
			for range others {
				c := waitingClaim(mutexClaim(name, time.Minute))
				go func() { _, _ = operator.Acquire(t.Context(), c) }()
			}
			link.LoseReplies(1)
			if err := st.Release(t.Context(), g.Claim, ""); err != nil {
				t.Errorf("layout %q, %d others: a release whose reply was lost: %v", layout, others, err)
			}
		}
	}
}

// TestShedLockReleaseWithoutTrace: where the row does not say how a claim ended, because several other claims have
// held the lock since, a release whose first reply was lost does not report success.
func TestShedLockReleaseWithoutTrace(t *testing.T) {
	t.Parallel()
	server, s, peers := startShedLock(t, 1)
	st, link := throughLink(t, server, server.URL("test")+"?sslmode=disable&layout=shedlock")
	for name, others := range map[string]func(){
		"two of ours": func() {
			c := mutexClaim("two of ours", time.Minute)
			release(t, s, acquire(t, s, c).Claim)
			acquire(t, s, mutexClaim("two of ours", time.Minute))
		},
		"foreign": func() {
			if ok, err := peers[0].Lock(t.Context(), "foreign", time.Minute); !ok || err != nil {
				t.Error(ok, err)
			}
		},
	} {
		g := acquire(t, st, mutexClaim(name, time.Minute))
		forceRelease(t, s, name)
		others()
		link.LoseReplies(1)
		checkError(t, st.Release(t.Context(), g.Claim, ""), driver.ErrUncertain)
	}
}

// TestUnsentRequests: if a release could not be sent at first, for lack of a connection, it cannot have ended the
// claim. If the claim does not exist when it is sent, the claim was lost. The outcome of a take that could not be
// sent is known, too.
func TestUnsentRequests(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	for _, layout := range []string{"", "shedlock"} {
		url := freshURL(t, s, "layout="+layout)
		var refuse atomic.Int32
		config, opts := parseURL(t, url)
		config.ConnConfig.DialFunc = refuseDials(config.ConnConfig.DialFunc, &refuse)
		st, pool := openOnPool(t, config, opts)
		g := acquire(t, st, mutexClaim("m", time.Minute))
		// so that nothing else shows what became of the claim
		execSQL(t, s, `delete from `+mustLocate(t, opts).locksTable)
		pool.Reset()
		refuse.Store(4)
		if err := st.Release(t.Context(), g.Claim, ""); !errors.Is(err, driver.ErrLost) || refuse.Load() > 0 {
			t.Errorf("layout %q: %v, with %d refusals left", layout, err, refuse.Load())
		}
		pool.Reset()
		refuse.Store(math.MaxInt32)
		if _, err := st.Acquire(t.Context(), mutexClaim("n", time.Second)); err == nil || driverutil.IsFinal(err) ||
			errors.Is(err, driver.ErrUncertain) {
			t.Errorf("layout %q: a claim that cannot be sent: %v", layout, err)
		}
	}
}

// refuseDials refuses to dial while n is positive.
func refuseDials(dial pgconn.DialFunc, n *atomic.Int32) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if n.Add(-1) >= 0 {
			return nil, errors.New("connection refused")
		}
		n.Store(0)
		return dial(ctx, network, addr)
	}
}

// TestWarningsOfOthers: a warning that a trigger raises is not mistaken for a warning about the commit, and is
// passed to the user's handler.
func TestWarningsOfOthers(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	config, opts := parseURL(t, freshURL(t, s))
	var heard atomic.Int32
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Message == "mind the gap" {
			heard.Add(1)
		}
	}
	st, _ := openOnPool(t, config, opts)
	execSQL(t, s, `create function tests.warn() returns trigger language plpgsql as $$ begin raise warning 'mind the gap'; return new; end $$;
		create trigger warn before insert or update on `+mustLocate(t, opts).locksTable+` for each row execute function tests.warn()`)
	g := acquire(t, st, mutexClaim("m", time.Minute))
	if r := renew(t, st, g); r.Err != nil {
		t.Error(r.Err)
	}
	release(t, st, g.Claim)
	if n := heard.Load(); n != 3 {
		t.Errorf("%d warnings of a trigger were heard", n)
	}
}
