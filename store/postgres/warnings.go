package postgres

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"path/filepath"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
)

// Warnings checks the server's settings, and how the server is reached.
func (t *table) Warnings(ctx context.Context) ([]string, error) {
	if t.batcher.life.Err() != nil {
		return nil, driver.ErrClosed
	}
	looking, cancel := context.WithTimeout(ctx, t.batcher.timeout)
	defer cancel()
	s, err := t.location.readServerState(looking, t.batcher.pool)
	if err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	return append(s.listWarnings(t.location.severalServers),
		connectionWarnings(t.batcher.pool.Config().ConnConfig)...), nil
}

// listWarnings warns of settings of the server and of the user.
func (s *serverState) listWarnings(several bool) (ws []string) {
	if s.Fsync != "on" {
		ws = append(ws, "fsync is off: after a power cut locks are forgotten, and the database may be broken; set it to on")
	}
	if s.SynchronousCommit == "off" {
		ws = append(ws, "synchronous_commit is off: after a crash of the server the last locks are forgotten; "+
			"set it to on, at least for the user of the locks")
	}
	switch {
	case s.StandbyNames != "" && s.ClientMinMessages == "error":
		ws = append(ws, "client_min_messages is error: a commit that the standbys did not confirm looks like one that they did; "+
			"set it to warning")
	case several && !s.waitsForStandbys():
		ws = append(ws, "several servers are named, and commits do not wait for the standbys: a failover may forget locks that are held; "+
			"set synchronous_standby_names, and synchronous_commit to on")
	}
	return ws
}

// connectionWarnings warns of the connection's settings.
func connectionWarnings(c *pgx.ConnConfig) (ws []string) {
	plain, encrypted := false, false
	note := func(host string, tls bool) {
		if isRemoteHost(host) {
			plain, encrypted = plain || !tls, encrypted || tls
		}
	}
	note(c.Host, c.TLSConfig != nil)
	for _, f := range c.Fallbacks {
		note(f.Host, f.TLSConfig != nil)
	}
	if plain && encrypted {
		ws = append(ws, fmt.Sprintf("sslmode is prefer, the default, or allow: an attacker between this client and %s "+
			"can read the password and answer for the server; set sslmode=verify-full", c.Host))
	}
	return ws
}

// isRemoteHost reports whether a host is another machine.
func isRemoteHost(host string) bool {
	network, _ := pgconn.NetworkAddress(host, 0)
	ip := net.ParseIP(host)
	return network != "unix" && !filepath.IsAbs(host) && host != "localhost" && (ip == nil || !ip.IsLoopback())
}

const maxWarnings = 8

// Warnings also names rows whose times cannot be right.
func (s *shedlockStore) Warnings(ctx context.Context) ([]string, error) {
	ws, err := s.table.Warnings(ctx)
	if err != nil {
		return nil, err
	}
	a := s.table.batcher.runStatement(ctx, s.suspectStmt)
	if a.err != nil {
		return nil, cmp.Or(ctx.Err(), s.table.location.explainError(a.err))
	}
	for _, row := range a.rows {
		if v := s.parseRow(row); v.timeFault != "" {
			ws = append(ws, v.describeTimeFault())
		}
		if len(ws) == maxWarnings {
			break
		}
	}
	return ws, nil
}
