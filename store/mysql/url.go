package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// The URL forms:
//
//	mysql://[user[:password]@]host[:3306]/database[?options]
//	mariadb://...                                             the same
//
// Options:
//
//	table=T             the locks' table
//	prefix=P            begins the names of the rows
//	layout=shedlock     uses ShedLock's table
//	create=true         makes the table if it does not exist
//	timeout=3s          a connection that does not answer for so long is given up
//	replica=true        accepts a replica that takes writes, as in a circle
//	clock-skew=1s       how far the clocks of the servers may be apart
//	max-conns=8         how many connections are open at most
//	socket=PATH         the server's unix socket, instead of the host
//	password-file=FILE  reads the password from a file, which keeps it out of the URL
//	tls=true            encrypts the connection, and checks the server's certificate
//	tls-ca=FILE, tls-cert=FILE, tls-key=FILE, tls-name=NAME   as for the other stores
func init() {
	driver.Register("mysql", openURL)
	driver.Register("mariadb", openURL)
}

// defaultMaxConns is how many connections a store opens by itself. Each statement takes one for a millisecond or so.
const defaultMaxConns = 8

func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	s, err := readURL(u)
	if err != nil {
		return nil, err
	}
	if dial := driverutil.DialerOf(ctx); dial != nil {
		s.config.DialFunc = dial
	}
	return s.open(ctx)
}

// storeURL is a URL that was read.
type storeURL struct {
	config   *mysql.Config
	password *driverutil.Secret
	tls      *driverutil.TLSFiles // nil: no TLS
	opts     Options
	maxConns int
}

// readURL turns a URL into the connections' settings and ours. It sends nothing to a server.
func readURL(u *url.URL) (*storeURL, error) {
	s := &storeURL{config: mysql.NewConfig(), maxConns: defaultMaxConns}
	c := s.config
	password, _ := u.User.Password()
	s.password = driverutil.NewSecret(password)
	c.User, c.DBName = u.User.Username(), strings.TrimPrefix(u.Path, "/")
	c.Net, c.Addr = "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "3306"))
	var secure driverutil.TLSOptions
	var socket string
	text := func(to *string) func(string) error { return func(v string) error { *to = v; return nil } }
	duration := func(to *time.Duration, least time.Duration) func(string) error {
		return func(v string) (err error) {
			if *to, err = time.ParseDuration(v); err == nil && *to < least {
				err = fmt.Errorf("must be %v or more", least)
			}
			return err
		}
	}
	err := driverutil.ParseOptions(u, secure.AddTo(map[string]func(string) error{
		"table":      text(&s.opts.Table),
		"prefix":     text(&s.opts.Prefix),
		"layout":     func(v string) error { s.opts.Layout = Layout(v); return nil },
		"create":     func(v string) (err error) { s.opts.Create, err = strconv.ParseBool(v); return err },
		"replica":    func(v string) (err error) { s.opts.Replica, err = strconv.ParseBool(v); return err },
		"timeout":    duration(&s.opts.Timeout, 50*time.Millisecond),
		"clock-skew": duration(&s.opts.ClockSkew, time.Millisecond),
		"max-conns": func(v string) (err error) {
			if s.maxConns, err = strconv.Atoi(v); err == nil && s.maxConns < 1 {
				err = errors.New("must be 1 or more")
			}
			return err
		},
		"socket":        text(&socket),
		"password-file": s.password.ReadFrom,
	}))
	if err != nil {
		return nil, err
	}
	if s.opts, err = s.opts.withDefaults(); err != nil {
		return nil, err
	}
	switch {
	case socket != "" && u.Host != "":
		return nil, fmt.Errorf("%w: the store's URL names a host and a socket: leave one away", driver.ErrInvalid)
	case socket != "":
		c.Net, c.Addr = "unix", socket
	case u.Hostname() == "":
		return nil, fmt.Errorf("%w: the store's URL names no server, as in %s://host:3306/database", driver.ErrInvalid,
			u.Scheme)
	}
	if c.DBName == "" || strings.Contains(c.DBName, "/") {
		return nil, fmt.Errorf("%w: the store's URL names no database, as in %s://host:3306/database",
			driver.ErrInvalid,
			u.Scheme)
	}
	if secure.On || secure.HasFiles() {
		secure.On, secure.Name = true, cmp.Or(secure.Name, u.Hostname())
	}
	if s.tls, err = secure.Open(); err != nil {
		return nil, err
	}
	s.opts.secrets = s.password.Sources()
	_ = s.readSecrets(context.Background(), c)
	return s, c.Apply(mysql.BeforeConnect(s.readSecrets))
}

// readSecrets puts what the files have now into the settings of a connection.
func (s *storeURL) readSecrets(_ context.Context, c *mysql.Config) error {
	if c.Passwd = s.password.Current(); s.tls != nil {
		c.TLS = s.tls.Config()
	}
	return nil
}

// open opens a store with a pool of its own.
func (s *storeURL) open(ctx context.Context) (driver.Store, error) {
	return driverutil.OpenWithRetry(ctx, s.tryOpen)
}

func (s *storeURL) tryOpen(ctx context.Context) (driver.Store, error) {
	db, err := s.openPool()
	if err != nil {
		return nil, err
	}
	t, err := newTable(ctx, db, &s.opts, func() { _ = db.Close() })
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	t.isPlain = s.tls == nil && isRemote(s.config)
	return t.newStore(ctx)
}

// openPool makes the pool, without connecting.
func (s *storeURL) openPool() (*sql.DB, error) {
	c := s.config.Clone()
	c.Logger = &mysql.NopLogger{} // our errors say what matters
	c.Timeout = s.opts.Timeout
	// A statement that waits for the lock of another session ends on the server shortly before this client gives it up.
	// Else such statements would accumulate there, one connection each. The first setting is for locked rows, the second
	// for a locked table.
	wait := strconv.Itoa(max(1, int(s.opts.Timeout*3/4/time.Second)))
	c.Params = map[string]string{"autocommit": "1", "innodb_lock_wait_timeout": wait, "lock_wait_timeout": wait}
	if s.opts.Layout == LayoutShedLock {
		c.Params["sql_mode"] = "'" + strictMode + "'"
	}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("%w: the store's URL: %s", driver.ErrInvalid, err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(s.maxConns)
	db.SetMaxIdleConns(s.maxConns)
	db.SetConnMaxIdleTime(time.Minute)
	return db, nil
}

// isRemote reports whether the server is on another machine.
func isRemote(c *mysql.Config) bool {
	host, _, _ := net.SplitHostPort(c.Addr)
	return c.Net == "tcp" && !driverutil.IsLoopback(host)
}
