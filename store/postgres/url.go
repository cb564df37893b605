package postgres

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/secretfile"
)

// The URL form is PostgreSQL's own:
//
//	postgres://[user[:password]@]host[:5432][,host...]/database[?options]
//
// Options of ours: schema=S and table=T, where the locks are; create=true makes the tables; layout=shedlock; timeout=3s,
// after which a connection counts as cut; password-file=FILE, which keeps the password out of the URL. Of libpq's: host,
// sslmode, sslrootcert, sslcert, sslkey, sslpassword, sslsni, sslnegotiation, target_session_attrs, connect_timeout,
// application_name, passfile, service, servicefile, channel_binding, min_protocol_version, max_protocol_version, and
// pool_max_conns=4, the most connections to be used. The environment (PGPASSWORD and the like) counts as for psql.
func init() {
	driver.Register("postgres", openURL)
	driver.Register("postgresql", openURL)
}

var libpqOptions = []string{"host", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslsni", "sslnegotiation",
	"target_session_attrs", "connect_timeout", "application_name", "passfile", "service", "servicefile", "channel_binding",
	"min_protocol_version", "max_protocol_version", "pool_max_conns"}

func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	config, opts, err := readURL(u)
	if err != nil {
		return nil, err
	}
	return openConfig(ctx, config, opts)
}

// readURL turns a URL into a pool's settings and ours. No server is asked.
func readURL(u *url.URL) (*pgxpool.Config, *Options, error) {
	o := &Options{}
	var password *string
	known := map[string]func(string) error{
		"schema": func(v string) error { o.Schema = v; return nil },
		"table":  func(v string) error { o.Table = v; return nil },
		"layout": func(v string) error { o.Layout = Layout(v); return nil },
		"create": func(v string) (err error) { o.Create, err = strconv.ParseBool(v); return err },
		"timeout": func(v string) (err error) {
			if o.Timeout, err = time.ParseDuration(v); err == nil && o.Timeout < 50*time.Millisecond {
				err = fmt.Errorf("must be 50ms or more")
			}
			return err
		},
		"password-file": func(v string) error {
			p, err := secretfile.Read(v)
			password = &p
			return err
		},
	}
	ours := slices.Collect(maps.Keys(known))
	for _, name := range libpqOptions {
		known[name] = func(string) error { return nil }
	}
	if err := driver.Query(u, known); err != nil {
		return nil, nil, err
	}
	if _, err := o.resolveLocation(); err != nil {
		return nil, nil, err
	}
	plain := *u
	query := u.Query()
	for _, name := range ours {
		query.Del(name)
	}
	plain.RawQuery = query.Encode()
	config, err := pgxpool.ParseConfig(plain.String())
	if err != nil {
		return nil, nil, fmt.Errorf("%w: the store's URL: %s", driver.ErrInvalid, err)
	}
	if password != nil {
		config.ConnConfig.Password = *password
	}
	if config.ConnConfig.ValidateConnect == nil && hasSeveralServers(config.ConnConfig) && !query.Has("target_session_attrs") && os.Getenv("PGTARGETSESSIONATTRS") == "" {
		config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	config.ConnConfig.RuntimeParams["application_name"] = cmp.Or(config.ConnConfig.RuntimeParams["application_name"], "holdfast")
	return config, o, nil
}

// maxOpenTime is how long an opening waits for a server that gives no answer, refuses connections or is starting up: no longer than
// a wait for a lock would.
const maxOpenTime = 10 * time.Second

// openConfig opens a store with a pool of its own.
func openConfig(ctx context.Context, config *pgxpool.Config, opts *Options) (driver.Store, error) {
	d := newDialer(config.ConnConfig.DialFunc)
	config.ConnConfig.DialFunc = d.Dial
	// A connection that went bad while it was idle shows at the next statement, which is repeated: no need to ask first.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	// What is prepared here is prepared by hand, so that nothing stays behind in a pooler.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		return prepareSession(ctx, c, cmp.Or(opts.Timeout, defaultTimeout))
	}
	if config.ConnConfig.ConnectTimeout == 0 { // one of several servers that is silent must leave the others their time
		config.ConnConfig.ConnectTimeout = cmp.Or(opts.Timeout, defaultTimeout)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", driver.ErrInvalid, err)
	}
	release := func() {
		d.limitAllConns(200 * time.Millisecond)
		pool.Close()
	}
	looking, cancel := context.WithTimeout(ctx, maxOpenTime)
	defer cancel()
	s, err := openWithRetry(looking, pool, opts, release)
	if err != nil {
		release()
		return nil, err
	}
	return s, nil
}

// openWithRetry bears with a server that is away until ctx ends: it may be restarting.
func openWithRetry(ctx context.Context, pool *pgxpool.Pool, opts *Options, release func()) (driver.Store, error) {
	var last error
	for tries := 0; ; tries++ {
		s, err := openStore(ctx, pool, opts, release)
		if err == nil || driver.IsFinal(err) {
			return s, err
		}
		if last == nil || ctx.Err() == nil { // the end of ctx says less than what came before
			last = err
		}
		select {
		case <-time.After(rand.N(50 * time.Millisecond << min(tries, 4))):
		case <-ctx.Done():
			return nil, last
		}
	}
}

// prepareSession has the server end a statement of this connection that waits for somebody else's lock, a little before it is given
// up here. The server does not notice that nobody wants the answer any more: such statements would gather there, a connection
// each, until it takes no more. They are not cancelled from here, since that would also end a commit's waiting for the
// standbys: see trip.receive, which has to hear of it when somebody else does, so warnings are asked for. Nothing is set where
// a pooler is in between, nor a lock_timeout where somebody has set one already.
func prepareSession(ctx context.Context, c *pgx.Conn, timeout time.Duration) error {
	_, err := c.Exec(ctx, `select set_config(name, wanted, false)
		from (values ('lock_timeout', '0', $1), ('client_min_messages', 'error', 'warning')) v (name, weak, wanted)
		where current_setting(name) = weak and pg_backend_pid()::int8 = $2`,
		pgx.QueryExecModeExec, strconv.FormatInt(timeout.Milliseconds()*3/4, 10), int64(c.PgConn().PID()))
	return err
}
