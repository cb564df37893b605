package postgres

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestStatementsPerOperation: a take of a free lock, a renewal and a release are one statement each, by the
// server's own count. So is a refused take. A waiter needs a few statements per minute.
func TestStatementsPerOperation(t *testing.T) {
	t.Parallel()
	server := startServer(t, "shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track=top")
	execSQL(t, server, `create extension pg_stat_statements`)
	for _, layout := range []string{"", "shedlock"} {
		url := freshURL(t, server, "layout="+layout)
		s, other := mustOpen(t, url), mustOpen(t, url)
		// What a connection is asked when it is made does not count: a slow test may need a second one.
		_, table, _ := strings.Cut(url, "table=")
		table, _, _ = strings.Cut(table, "&")
		count := func() int {
			n, err := server.QueryValue(`select coalesce(sum(calls), 0) from pg_stat_statements where query ~ '` + table + `'`)
			if err != nil {
				t.Fatal(err)
			}
			calls, _ := strconv.Atoi(n)
			return calls
		}
		step := func(what string, want int, f func()) {
			execSQL(t, server, `select pg_stat_statements_reset()`)
			f()
			if n := count(); n != want {
				t.Errorf("layout %q: %s is %d statements, want %d", layout, what, n, want)
			}
		}
		for _, name := range []string{"new", "known", "known"} {
			c := mutexClaim(name, time.Minute)
			var g driver.Grant
			step("acquire", 1, func() { g = acquire(t, s, c) })
			step("renew", 1, func() {
				if r := renew(t, s, g); r.Err != nil {
					t.Error(r.Err)
				}
			})
			step("release", 1, func() {
				if err := s.Release(t.Context(), c, ""); err != nil {
					t.Error(err)
				}
			})
		}
		g := acquire(t, s, mutexClaim("held", time.Minute))
		refuse := func() {
			if _, err := other.Acquire(t.Context(), mutexClaim("held", time.Minute)); !errors.Is(err, driver.ErrHeld) {
				t.Error(err)
			}
		}
		step("the first refusal", 1, refuse)
		step("the next refusal", 1, refuse)
		c := waitingClaim(mutexClaim("held", time.Minute))
		execSQL(t, server, `select pg_stat_statements_reset()`)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err := other.Acquire(ctx, c)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		n := count()
		t.Logf("layout %q: a waiter costs %d statements in its first 3 s", layout, n)
		if n > 15 {
			t.Errorf("layout %q: a waiter cost %d statements in 3 s", layout, n)
		}
		if err := s.Release(t.Context(), g.Claim, ""); err != nil {
			t.Error(err)
		}
	}
}
