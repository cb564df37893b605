package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() {
	describe := storeurl.Describe((*storeURL).form)
	driver.Register("mysql", openURL, describe)
	driver.Register("mariadb", openURL, describe)
}

// storeURL is what a URL says.
type storeURL struct {
	user, host, socket, database string
	password                     driverutil.Secret
	opts                         Options
	maxConns                     int
	secure                       driverutil.TLSOptions

	config *mysql.Config        // what of it go-sql-driver needs
	tls    *driverutil.TLSFiles // nil: no TLS
}

func (s *storeURL) form() *storeurl.Form {
	o := &s.opts
	f := &storeurl.Form{
		Shape: "mysql://[user[:password]@][host[:3306]]/database",
		User:  &s.user, Password: &s.password, Host: &s.host, Path: &s.database,
		Options: []storeurl.Option{
			{Name: "table", To: storeurl.Text(&o.Table), Default: "`holdfast`; `shedlock` with that layout",
				Means: "the table of the locks"},
			{Name: "prefix", To: storeurl.Text(&o.Prefix), Layouts: storeurl.For(LayoutRecord), Means: "the beginning of the rows' " +
				"names, so that several stores share a table: no prefix of one may begin with that of another, as `a/` and `b/` do " +
				"not; 255 bytes at most"},
			storeurl.Create(&o.Create, "table"),
			storeurl.Layout(&o.Layout, "`shedlock` is ShedLock's table, for the mutex. ShedLock must be set to `usingDbTime()`",
				layouts...),
			storeurl.Timeout(&o.Timeout, defaultTimeout, 50*time.Millisecond),
			{Name: "max-conns", To: storeurl.Number(&s.maxConns, 1, 0), Default: "`" + strconv.Itoa(defaultMaxConns) + "`",
				Means: "the largest number of connections"},
			storeurl.ClockSkew(&o.ClockSkew, "`1s` on a member of a Galera cluster or of a group with several primaries, and "+
				"nothing elsewhere", storeurl.For(LayoutRecord)),
			{Name: "replica", To: storeurl.Bool(&o.Replica), Means: "accept a replica that takes writes, as in a circle of " +
				"servers; all clients must use the same one"},
			{Name: "socket", To: storeurl.File(&s.socket), Means: "the server's unix socket, with no host in the URL: " +
				"`mysql://user@/database?socket=/run/mysqld/mysqld.sock`"},
			storeurl.PasswordFile(&s.password),
		},
		TLS: &s.secure,
	}
	f.Check = func() error {
		switch {
		case s.socket != "" && s.host != "":
			return storeurl.RefuseBoth("a host", "a socket")
		case s.socket == "" && (s.host == "" || strings.HasPrefix(s.host, ":")):
			return f.Refuse("names no server")
		case strings.Contains(s.database, "/"):
			return f.Refuse("names a database with a slash")
		}
		return nil
	}
	return f
}

// defaultMaxConns is how many connections a store opens by itself. Each statement takes one for a millisecond or so.
const defaultMaxConns = 8

// openURL opens a store by its URL.
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

// readURL turns a URL into the connections' settings and ours. It sends nothing to a server.
func readURL(u *url.URL) (*storeURL, error) {
	s := &storeURL{config: mysql.NewConfig(), maxConns: defaultMaxConns}
	err := s.form().Read(u)
	if err != nil {
		return nil, err
	}
	if s.opts, err = s.opts.withDefaults(); err != nil {
		return nil, err
	}
	c := s.config
	c.User, c.DBName, c.Net, c.Addr = s.user, s.database, "tcp", s.host
	if s.socket != "" {
		c.Net, c.Addr = "unix", s.socket
	}
	if s.secure.Name == "" && (s.secure.On || s.secure.HasFiles()) {
		s.secure.On, s.secure.Name = true, u.Hostname()
	}
	if s.tls, err = s.secure.Open(); err != nil {
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

// tryOpen makes one attempt to reach the server and the table.
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
	// Else such statements would accumulate there, one connection each. The first setting is for locked rows, the
	// second for a locked table.
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
