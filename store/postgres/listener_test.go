package postgres

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestListenRefused: a server that accepts the listening connection, and then refuses to let it listen, is not
// asked again without a pause.
func TestListenRefused(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	execSQL(t, s, `create role reader login; create schema office authorization reader;
		revoke execute on function pg_advisory_lock_shared(int, int) from public`)
	config, opts := parseURL(t, s.URL("reader")+"?sslmode=disable&schema=office&create=true")
	var dials atomic.Int32
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	st, err := openConfig(t.Context(), config, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	g := acquire(t, st, mutexClaim("m", time.Minute))
	c := waitingClaim(mutexClaim("m", time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	before := dials.Load()
	if _, err := st.Acquire(ctx, c); err == nil {
		t.Error("two hold it")
	}
	if n := dials.Load() - before; n > 30 {
		t.Errorf("%d connections were made in 3 s", n)
	}
	release(t, st, g.Claim)
}

// TestPoolWithNotificationHandler: a user's pool may have a handler for notifications. Waiters are notified all
// the same, and the handler does not get our notifications.
func TestPoolWithNotificationHandler(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	config, opts := parseURL(t, freshURL(t, s, "application_name=users_notifications"))
	server := watchServer(t, s)
	var strays atomic.Int32
	config.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { strays.Add(1) }
	st, _ := openOnPool(t, config, opts)
	var worst time.Duration
	for range 5 {
		g := acquire(t, st, mutexClaim("m", time.Minute))
		var next driver.Grant
		returned := startWaiter(t, s, "users_notifications", func() (err error) {
			next, err = st.Acquire(t.Context(), waitingClaim(mutexClaim("m", time.Minute)))
			return err
		})
		start := time.Now()
		release(t, st, g.Claim)
		if err := <-returned; err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(start)-10*server.Worst(start))
		release(t, st, next.Claim)
	}
	if worst > 500*time.Millisecond || strays.Load() > 0 {
		t.Errorf("let in %v after the release; %d notifications of ours went to the user", worst, strays.Load())
	}
}

// TestShedLockOneSubscription: a waiter in ShedLock's layout has one subscription, however often it is notified.
func TestShedLockOneSubscription(t *testing.T) {
	t.Parallel()
	table, st := openShedlockTable(t, freshURL(t, sharedServer(t), "layout=shedlock"))
	g := acquire(t, st, mutexClaim("m", time.Minute))
	c := waitingClaim(mutexClaim("m", time.Minute))
	over := make(chan error, 1)
	go func() { _, err := st.Acquire(t.Context(), c); over <- err }()
	seats := func() int {
		n := table.listener
		n.mu.Lock()
		defer n.mu.Unlock()
		if w := n.interests[wanted{bucket: bucketOf("m")}]; w != nil && w.names["m"] != nil {
			return len(w.names["m"].subscriptions)
		}
		return 0
	}
	sits := func() bool { return seats() > 0 }
	eventually(t, "the waiter's seat", sits)
	for range 20 {
		if r := renew(t, st, g); r.Err != nil {
			t.Fatal(r.Err)
		}
		time.Sleep(20 * time.Millisecond)
		if n := seats(); n > 1 {
			t.Errorf("a waiter has %d subscriptions", n)
		}
	}
	eventually(t, "the waiter's seat after it was told", sits)
	release(t, st, g.Claim)
	if err := <-over; err != nil {
		t.Error(err)
	}
}

// TestListeningPastASilentServer: if the first of several servers does not answer, waiters listen on another one.
func TestListeningPastASilentServer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s := sharedServer(t)
	url := freshURL(t, s, "application_name=past_silent", "timeout=1s")
	st := mustOpen(t, strings.Replace(url, s.Addr, silent.Addr().String()+","+s.Addr, 1))
	acquire(t, mustOpen(t, url), mutexClaim("m", time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	returned := startWaiter(t, s, "past_silent", func() error {
		_, err := st.Acquire(ctx, waitingClaim(mutexClaim("m", time.Minute)))
		return err
	})
	cancel()
	<-returned
}

// TestListenerClosesIdleConnection: the listening connection is closed when there was no waiter for a while, and
// opened again for the next one.
func TestListenerClosesIdleConnection(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	config, opts := parseURL(t, freshURL(t, s, "application_name=leaves"))
	pool := newPool(t, config)
	table, err := newTable(t.Context(), pool, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	n := table.listener
	n.connIdleTime = 0
	running := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.isRunning
	}
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		returned := startWaiter(t, s, "leaves", func() error {
			for {
				if err := storetest.WaitForChange(ctx, table, "m", ""); err != nil {
					return err
				}
				if _, err := table.Load(ctx, "m"); err != nil {
					return err
				}
			}
		})
		cancel()
		checkError(t, <-returned, context.Canceled)
		eventually(t, "the end of the listening", func() bool { return !running() })
		eventually(t, "the end of the connection", func() bool { // the server notices it a moment later
			left, err := s.QueryValue(`select count(*) from pg_stat_activity where application_name = 'leaves'`)
			return err == nil && left == strconv.Itoa(int(pool.Stat().TotalConns()))
		})
	}
}

// openTables opens two clients of the same rows.
func openTables(t *testing.T, application string) (one, two *table) {
	t.Helper()
	config, opts := parseURL(t, freshURL(t, sharedServer(t), "application_name="+application))
	for _, to := range []**table{&one, &two} {
		table, err := newTable(t.Context(), newPool(t, config), opts, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { table.Close() })
		*to = table
	}
	return one, two
}

// TestNotices: a client that listens for notices of a lock gets those of the swaps that name its session, and no
// others. What is no session is left out, whatever characters it has. A client behind a pooler notifies all, and so
// does who names the session of a client of a version before, which listens as all do.
func TestNotices(t *testing.T) {
	t.Parallel()
	one, two := openTables(t, "notices")
	versions := map[string]string{}
	swap := func(name string, sessions ...string) {
		t.Helper()
		row, err := one.Swap(t.Context(), record.Row{Name: name, Version: versions[name], Data: []byte("{}"), Notify: sessions})
		if err != nil {
			t.Fatal(err)
		}
		versions[name] = row.Version
	}
	noticed, last := listen(t, two, "a/b"), listen(t, two, "last")
	swap("a/b")
	swap("a/b", one.Session())
	swap("b", two.Session())
	swap("a/b", one.Session(), two.Session()+"\x00", one.Session()+"}", "")
	swap("last", one.Session(), two.Session())
	// Notifications come in the order of the swaps.
	eventually(t, "the notice of the last swap", func() bool { return storetest.IsClosed(last) })
	if storetest.IsClosed(noticed) {
		t.Error("it was notified of a change that does not concern it")
	}
	swap("a/b", two.Session())
	eventually(t, "the notice", func() bool { return storetest.IsClosed(noticed) })
	many := []string{two.Session()}
	for range 300 {
		many = append(many, one.location.channel+"_"+record.NewSession())
	}
	noticed = listen(t, two, "a/b")
	swap("a/b", many...)
	eventually(t, "the notice with many others", func() bool { return storetest.IsClosed(noticed) })
	tooLong := (one.location.channel + "_" + strings.Repeat("A", 64))[:maxChannel+1]
	for _, other := range []string{record.NewSession(), tooLong} {
		noticed = listen(t, two, "a/b")
		swap("a/b", other)
		eventually(t, "the notice for a version before", func() bool { return storetest.IsClosed(noticed) })
	}
	noticed = listen(t, two, "a/b")
	one.behindPooler = true
	one.buildStatements()
	swap("a/b")
	eventually(t, "the notice of a client behind a pooler", func() bool { return storetest.IsClosed(noticed) })
}

// TestNoticedRow: a notice brings the row, unless that is too long for the server, or the client does not know whom it
// notifies.
func TestNoticedRow(t *testing.T) {
	t.Parallel()
	one, two := openTables(t, "noticed")
	short, long := make([]byte, 5400), make([]byte, 5401)
	for i := range short {
		short[i] = byte(i)
	}
	places := []record.Place{record.Outside, record.InQueue}
	for _, place := range places {
		storetest.CheckNoticedRow(t, one, two, place, short, true)
		storetest.CheckNoticedRow(t, one, two, place, long, false)
	}
	one.behindPooler = true
	one.buildStatements()
	for _, place := range places {
		storetest.CheckNoticedRow(t, one, two, place, short, false)
	}
}

// TestForgedNotice: a client that may not write sends a notification with a record that says that the lock is free. The
// waiter writes, and is refused.
func TestForgedNotice(t *testing.T) {
	t.Parallel()
	one, two := openTables(t, "forged")
	holder, waiter := record.New(one), record.New(two)
	free := storetest.Mutex("free", time.Minute)
	storetest.Acquire(t, holder, free)
	storetest.Release(t, holder, free)
	held := storetest.Acquire(t, holder, storetest.Mutex("m", time.Minute))
	waiting := storetest.Mutex("m", time.Minute)
	waiting.Wait = true
	granted := make(chan error, 1)
	go func() { _, err := waiter.Acquire(t.Context(), waiting); granted <- err }()
	what, bucket := wanted{bucket: bucketOf("m")}, bucketOf("m")
	eventually(t, "the waiter listens", func() bool {
		two.listener.mu.Lock()
		defer two.listener.mu.Unlock()
		b := two.listener.interests[what]
		return b != nil && b.isLocked() && b.waiters > 0
	})
	row, err := one.Load(t.Context(), "m")
	if err != nil {
		t.Fatal(err)
	}
	version, err := base64.URLEncoding.DecodeString(row.Version)
	if err != nil {
		t.Fatal(err)
	}
	forged, err := one.Load(t.Context(), "free")
	if err != nil {
		t.Fatal(err)
	}
	two.contended[bucket].Store(0)
	text := base64.StdEncoding.EncodeToString(append(version[:idSize:idSize], forged.Data...))
	_, err = one.batcher.pool.Exec(t.Context(), "select pg_notify($1, $2)", one.location.bucketChannel(bucket),
		strings.ReplaceAll(text, "/", "_")+"/m")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the waiter was refused", func() bool {
		return two.contended[bucket].Load() > 0 || len(granted) > 0
	})
	if err := storetest.Renew(t, holder, held).Err; err != nil {
		t.Errorf("the holder renews: %v", err)
	}
	storetest.Release(t, holder, held.Claim)
	if err := <-granted; err != nil {
		t.Error(err)
	}
}

// listen listens for notices of a name, and returns a channel that is closed by the first one.
func listen(t *testing.T, client *table, name string) <-chan struct{} {
	t.Helper()
	notices := wanted{bucketOf(name), true}
	s, live := client.listener.subscribe(notices, name)
	t.Cleanup(func() { client.listener.unsubscribe(notices, name, s) })
	<-live
	return s.notified
}

// TestNotifiedByVersionBefore: clients of the versions before notify on the table's channel, and name the sessions, if
// another one holds the lock of the bucket. A client that listens for notices gets those that name its session,
// and one that watches the lock gets all.
func TestNotifiedByVersionBefore(t *testing.T) {
	t.Parallel()
	_, two := openTables(t, "before")
	s, p := sharedServer(t), two.location
	notify := func(session, name string) {
		t.Helper()
		execSQL(t, s, fmt.Sprintf("select pg_notify('%s', '%s/%s') where not pg_try_advisory_xact_lock(%d, %d)",
			p.channel, session, name, p.lockClass, bucketOf(name)))
	}
	noticed := listen(t, two, "m")
	watch := wanted{bucket: bucketOf("watched")}
	watcher, live := two.listener.subscribe(watch, "watched")
	defer two.listener.unsubscribe(watch, "watched", watcher)
	<-live
	notify(record.NewSession(), "m")
	notify(record.NewSession(), "watched")
	eventually(t, "the change", func() bool { return storetest.IsClosed(watcher.notified) })
	if storetest.IsClosed(noticed) {
		t.Error("it was notified of a change that does not concern it")
	}
	notify(record.NewSession()+","+two.Session(), "m")
	eventually(t, "the notice", func() bool { return storetest.IsClosed(noticed) })
}

// TestOthersAreNotWoken: while a lock goes from one client to the next, the clients that wait for another lock, and
// those that are far from the head of a queue, hear nothing of it.
func TestOthersAreNotWoken(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	config, opts := parseURL(t, freshURL(t, s, "application_name=not_woken"))
	holder, _ := openOnPool(t, config, opts)
	fair := func(c driver.Claim) driver.Claim {
		c = waitingClaim(c)
		c.Fair = true
		return c
	}
	held := acquire(t, holder, mutexClaim("held", time.Minute))
	queued := acquire(t, holder, fair(mutexClaim("hot", time.Minute)))
	var reads atomic.Int64
	counted := config.Copy()
	counted.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return countingConn{c, &reads}, err
	}
	begin := func(config *pgxpool.Config, application string, c driver.Claim) (store driver.Store, returned <-chan error) {
		config = config.Copy()
		config.ConnConfig.RuntimeParams["application_name"] = application
		store, _ = openOnPool(t, config, opts)
		return store, startWaiter(t, s, application, func() error {
			g, err := store.Acquire(t.Context(), c)
			if err == nil {
				release(t, store, g.Claim)
			}
			return err
		})
	}
	const turns = 60
	hot := make([]<-chan error, turns)
	for i := range hot {
		_, hot[i] = begin(config, fmt.Sprint("not_woken_hot_", i), fair(mutexClaim("hot", time.Minute)))
	}
	_, plain := begin(counted, "not_woken_plain", waitingClaim(mutexClaim("held", time.Minute)))
	_, far := begin(counted, "not_woken_far", fair(mutexClaim("hot", time.Minute)))
	before, from := reads.Load(), time.Now()
	release(t, holder, queued.Claim)
	for _, returned := range hot {
		if err := <-returned; err != nil {
			t.Error(err)
		}
	}
	if err := <-far; err != nil {
		t.Error(err)
	}
	n, polls := reads.Load()-before, 4*(time.Since(from)/time.Second+1)
	t.Logf("%d reads in %v", n, time.Since(from))
	if n > turns+int64(polls) { // woken each time, they would read at least twice as often
		t.Errorf("two clients have read %d times from the server, during %d hand-overs between others", n, turns)
	}
	release(t, holder, held.Claim)
	if err := <-plain; err != nil {
		t.Error(err)
	}
}

// countingConn counts the reads that have brought something.
type countingConn struct {
	net.Conn
	reads *atomic.Int64
}

func (c countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.reads.Add(1)
	}
	return n, err
}

// TestMayHaveMissedNotice: a client that has read or written a version while it was notified has missed no notice
// since, unless there was one, whether it listened then or not.
func TestMayHaveMissedNotice(t *testing.T) {
	t.Parallel()
	one, two := openTables(t, "missed_notice")
	notices := wanted{bucketOf("m"), true}
	var row record.Row
	swap := func(by *table, sessions ...string) {
		t.Helper()
		row.Name, row.Data, row.Notify = "m", []byte("{}"), sessions
		now, err := by.Swap(t.Context(), row)
		if err != nil {
			t.Fatal(err)
		}
		row.Version = now.Version
	}
	check := func(when string, want bool) {
		t.Helper()
		listen(t, two, "m")
		if got := !two.listener.isCurrent(notices, "m", row.Version); got != want {
			t.Errorf("%s: it may have missed a notice: %v, want %v", when, got, want)
		}
		if !want {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := two.Watch("m").Wait(ctx, row.Version, record.InQueue); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	read := func() {
		t.Helper()
		if _, err := two.Load(t.Context(), "m"); err != nil {
			t.Fatal(err)
		}
	}
	swap(two)
	check("written before it was notified", true)
	swap(two)
	check("written", false)
	swap(one)
	check("written by another client", true)
	read()
	check("read", false)
	known := row.Version
	swap(one, two.Session())
	eventually(t, "the notice that came while it did not listen", func() bool {
		listen(t, two, "m")
		return !two.listener.isCurrent(notices, "m", known)
	})
}

// TestKnownVersionNeedsNoRead: a waiter that has read a version while changes were notified already need not read it
// again, unless there was a change since, or one may have been missed.
func TestKnownVersionNeedsNoRead(t *testing.T) {
	t.Parallel()
	one, two := openTables(t, "known_version")
	read := func() string {
		t.Helper()
		row, err := two.Load(t.Context(), "m")
		if err != nil {
			t.Fatal(err)
		}
		return row.Version
	}
	n := two.listener
	what := wanted{bucket: bucketOf("m")}
	s, live := n.subscribe(what, "m")
	defer n.unsubscribe(what, "m", s)
	<-live
	if n.isCurrent(what, "m", "") {
		t.Error("it is current without a read")
	}
	version := read()
	if !n.isCurrent(what, "m", version) || n.isCurrent(what, "m", "another") {
		t.Error("a version that was read is not current, or another one is")
	}
	if _, err := one.Swap(t.Context(), record.Row{Name: "m", Data: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the notification", func() bool { return !n.isCurrent(what, "m", version) })
	version = read()
	if !n.isCurrent(what, "m", version) {
		t.Error("the new version is not current")
	}
	execSQL(t, sharedServer(t), `select pg_terminate_backend(pid) from pg_stat_activity where `+listeningSQL("known_version"))
	eventually(t, "the end of the connection", func() bool { return !n.isCurrent(what, "m", version) })
}
