package postgres

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() {
	describe := storeurl.Describe((*storeURL).form)
	driver.Register("postgres", openURL, describe)
	driver.Register("postgresql", openURL, describe)
}

// storeURL is what a URL says to us. The URL is PostgreSQL's own, and pgx reads the rest. Environment variables
// (PGPASSWORD and the like) work as they do for psql.
type storeURL struct {
	password driverutil.Secret
	opts     Options
}

func (s *storeURL) form() *storeurl.Form {
	o := &s.opts
	f := &storeurl.Form{
		Shape: "postgres://[[user][:password]@][host[:5432][,host...]][/database]",
		Options: []storeurl.Option{
			{Name: "schema", To: storeurl.Text(&o.Schema), Default: "`public`", Means: "the schema of the locks' table"},
			{Name: "table", To: storeurl.Text(&o.Table), Default: "`holdfast`; `shedlock` with that layout",
				Means: "the table of the locks"},
			storeurl.Create(&o.Create, "tables"),
			storeurl.Layout(&o.Layout, "`shedlock` is ShedLock's table, for the mutex. ShedLock must be set to `usingDbTime()`, "+
				"or to UTC", layouts...),
			storeurl.Timeout(&o.Timeout, defaultTimeout, 50*time.Millisecond),
			storeurl.PasswordFile(&s.password),
		},
		Check: func() error { _, err := o.resolveLocation(); return err },
	}
	passOn := storeurl.Func("text", func(string) error { return nil })
	for _, name := range libpqOptions {
		f.Options = append(f.Options, storeurl.Option{Name: name, To: passOn, Means: "as for libpq"})
	}
	f.Options = append(f.Options, storeurl.Option{Name: poolOption, To: passOn,
		Default: "4, or one per processor if there are more", Means: "the largest number of connections"})
	return f
}

// poolOption is read by pgxpool.
const poolOption = "pool_max_conns"

// libpqOptions are passed on as they are.
var libpqOptions = []string{"host", "connect_timeout", "application_name", "passfile", "service", "servicefile",
	"target_session_attrs", "channel_binding", "min_protocol_version", "max_protocol_version", "sslmode", "sslrootcert",
	"sslcert", "sslkey", "sslpassword", "sslsni", "sslnegotiation"}

// openURL opens a store by its URL.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	config, opts, err := readURL(u)
	if err != nil {
		return nil, err
	}
	if dial := driverutil.DialerOf(ctx); dial != nil {
		config.ConnConfig.DialFunc = dial
	}
	return openConfig(ctx, config, opts)
}

// readURL turns a URL into the pool's settings and ours. It sends nothing to a server.
func readURL(u *url.URL) (*pgxpool.Config, *Options, error) {
	s := &storeURL{}
	if err := s.form().Read(u); err != nil {
		return nil, nil, err
	}
	plain, query := *u, u.Query()
	for name := range query {
		if name != poolOption && !slices.Contains(libpqOptions, name) {
			query.Del(name)
		}
	}
	plain.RawQuery = query.Encode()
	config, err := pgxpool.ParseConfig(plain.String())
	if err != nil {
		return nil, nil, fmt.Errorf("%w: the store's URL: %s", driver.ErrInvalid, err)
	}
	secrets := &urlSecrets{url: plain.String(), password: &s.password, last: config.ConnConfig}
	if query.Get("sslpassword") == "" {
		secrets.cert = cmp.Or(query.Get("sslcert"), os.Getenv("PGSSLCERT"))
		secrets.key = cmp.Or(query.Get("sslkey"), os.Getenv("PGSSLKEY"))
	}
	if err := secrets.readCertificate(secrets.last); err != nil {
		return nil, nil, fmt.Errorf("%w: the store's URL: %s", driver.ErrInvalid, err)
	}
	if s.password.IsFile() {
		config.ConnConfig.Password = s.password.Current()
	}
	config.BeforeConnect = secrets.readAgain
	s.opts.secrets = []driverutil.SecretSource{&s.password, secrets}
	// Where several servers are named, the primary is meant, unless the user says otherwise.
	if config.ConnConfig.ValidateConnect == nil && hasSeveralServers(config.ConnConfig) &&
		!query.Has("target_session_attrs") && os.Getenv("PGTARGETSESSIONATTRS") == "" {
		config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	params := config.ConnConfig.RuntimeParams
	params["application_name"] = cmp.Or(params["application_name"], "holdfast")
	return config, &s.opts, nil
}

// urlSecrets reads the files of a URL again for each connection: those that libpq's options name or that it finds by
// itself, such as passfile and sslcert, by reading the URL again.
type urlSecrets struct {
	url      string
	password *driverutil.Secret
	// cert and key are the files of the client's certificate. They are empty if it is found elsewhere, as in
	// ~/.postgresql, or if the key has a password.
	cert, key string

	mu      sync.Mutex
	last    *pgx.ConnConfig // the last that could be read
	problem error
}

// read reads the URL and its files.
func (s *urlSecrets) read() (*pgx.ConnConfig, error) {
	c, err := pgx.ParseConfig(s.url)
	if err != nil {
		return nil, err
	}
	return c, s.readCertificate(c)
}

// readCertificate puts the client's certificate into new settings, if its files are known. pgx reads it at each
// handshake, and then fails while the files are being replaced.
func (s *urlSecrets) readCertificate(c *pgx.ConnConfig) error {
	configs := []*tls.Config{c.TLSConfig}
	for _, f := range c.Fallbacks {
		configs = append(configs, f.TLSConfig)
	}
	configs = slices.DeleteFunc(configs, func(t *tls.Config) bool { return t == nil })
	if s.cert == "" || s.key == "" || len(configs) == 0 {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(s.cert, s.key)
	if err != nil {
		return err
	}
	for _, t := range configs {
		t.Certificates = []tls.Certificate{pair}
	}
	return nil
}

// readAgain puts what the files have now into the settings of a connection. If they cannot be used, as when they are
// being replaced, that is what they had before. pgx takes a passfile that it cannot read for one without a password.
func (s *urlSecrets) readAgain(_ context.Context, c *pgx.ConnConfig) error {
	now, err := s.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem = err; err == nil {
		if now.Password == "" && s.last.Password != "" && !s.password.IsFile() {
			s.problem = errors.New("there is no password any more in the passfile (by default PGPASSFILE or ~/.pgpass)")
			now.Password = s.last.Password
		}
		s.last = now
	}
	// All is taken but what this package has set: pgx remembers the certificates that it found by itself in a field
	// of its own.
	read := s.last.Config.Copy()
	read.DialFunc, read.ConnectTimeout, read.ValidateConnect = c.DialFunc, c.ConnectTimeout, c.ValidateConnect
	read.RuntimeParams, read.OnNotice, read.OnNotification = c.RuntimeParams, c.OnNotice, c.OnNotification
	c.Config = *read
	if s.password.IsFile() {
		c.Password = s.password.Current()
	}
	return nil
}

// Problem implements driverutil.SecretSource.
func (s *urlSecrets) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem == nil {
		return nil
	}
	files := ""
	if u, err := url.Parse(s.url); err == nil {
		for _, name := range []string{"sslrootcert", "sslcert", "sslkey", "passfile", "servicefile"} {
			if file := u.Query().Get(name); file != "" {
				files += ", " + file
			}
		}
	}
	return fmt.Errorf("what the files had before was used%s: %s", files, s.problem)
}

// openConfig opens a store with a pool of its own.
func openConfig(ctx context.Context, config *pgxpool.Config, opts *Options) (driver.Store, error) {
	d := newDialer(config.ConnConfig.DialFunc)
	config.ConnConfig.DialFunc = d.Dial
	// A connection that broke while it was idle shows at the next statement, which is repeated. So there
	// is no need to ping it first.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	// pgx must not prepare statements by itself: they would stay behind in a pooler. The batcher prepares
	// its own where it is safe.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		return prepareSession(ctx, c, cmp.Or(opts.Timeout, defaultTimeout))
	}
	if config.ConnConfig.ConnectTimeout == 0 { // a server that does not answer must leave time for the others
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
	s, err := driverutil.OpenWithRetry(ctx, func(ctx context.Context) (driver.Store, error) {
		return openStore(ctx, pool, opts, release)
	})
	if err != nil {
		release()
		return nil, err
	}
	return s, nil
}

// prepareSession sets lock_timeout, so that the server ends a statement that waits for a lock of another
// session, shortly before this client gives the statement up. The server does not notice that the client
// has given up. Such statements would accumulate there, one connection each, until the server accepts no
// more connections.
//
// The client must not cancel its statements instead, because that would also end a commit's wait for the
// standbys. (When another client cancels such a wait, sentBatch.readResults must learn of it; that is why
// warnings are turned on here.)
//
// Nothing is set behind a pooler, and no lock_timeout where one is set already.
func prepareSession(ctx context.Context, c *pgx.Conn, timeout time.Duration) error {
	_, err := c.Exec(ctx, `select set_config(name, wanted, false)
		from (values ('lock_timeout', '0', $1), ('client_min_messages', 'error', 'warning')) v (name, weak, wanted)
		where current_setting(name) = weak and pg_backend_pid()::int8 = $2`,
		pgx.QueryExecModeExec, strconv.FormatInt(timeout.Milliseconds()*3/4, 10), int64(c.PgConn().PID()))
	return err
}
