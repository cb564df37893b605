package postgres

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
)

// TestUsersNotifications: a pool of the user's whose connections hand on what they are notified of does not keep it from those
// who wait, nor gets what is ours.
func TestUsersNotifications(t *testing.T) {
	t.Parallel()
	s := server(t)
	config, opts := parse(t, freshURL(t, s))
	var strays atomic.Int32
	config.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { strays.Add(1) }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	st, err := New(t.Context(), pool, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var worst time.Duration
	for range 5 {
		g := acquire(t, st, mutex("m", time.Minute))
		c := mutex("m", time.Minute)
		c.Wait = true
		granted := make(chan driver.Grant)
		go func() {
			next, err := st.Acquire(t.Context(), c)
			if err != nil {
				t.Error(err)
			}
			granted <- next
		}()
		time.Sleep(200 * time.Millisecond) // it listens
		start := time.Now()
		release(t, st, g.Claim)
		next := <-granted
		worst = max(worst, time.Since(start))
		release(t, st, next.Claim)
	}
	if worst > 500*time.Millisecond || strays.Load() > 0 {
		t.Errorf("let in %v after the release; %d notifications of ours went to the user", worst, strays.Load())
	}
}
