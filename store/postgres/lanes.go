package postgres

import (
	"context"
	"errors"
	"hash/fnv"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
)

// lanes carry statements to the server over a few connections. Who finds a lane free carries his own statement. What
// gathers while none is free is sent in one go, each statement a transaction of its own, and the answers are handed out
// as they come. So many callers cost few connections and few packets, and one costs no more than his statement. A caller
// whose context ends goes his way without harming a connection: what was sent goes on beside him.
type lanes struct {
	pool    *pgxpool.Pool
	place   *place
	behind  bool // a pooler is in between: nothing may be prepared for longer than a transaction
	timeout time.Duration
	clock   driver.Clock
	users   callbacks
	broken  func() // called when a connection broke: others that were idle may have broken with it

	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	free    int32      // lanes that nobody uses
	queue   []*request // what waits for a lane
	running sync.WaitGroup
}

const (
	// maxBatch is how many statements a lane sends at once.
	maxBatch = 16
	// maxSize is how many bytes a lane sends without reading, beside its first statement: what fits into the buffers on
	// the way even when the server does not read, because it waits for its answers to be read.
	maxSize = 16 << 10
)

// statement is one kind of statement, which each connection prepares once.
type statement struct {
	name, text string
	formats    []int16 // of its parameters
	recovery   int     // the column that says whether the server is a standby; 0: it only runs where one can write
}

func newStatement(text string, formats ...int16) *statement {
	h := fnv.New64a()
	h.Write([]byte(text))
	return &statement{name: "holdfast_" + strconv.FormatUint(h.Sum64(), 36), text: text, formats: formats}
}

type request struct {
	ctx    context.Context
	st     *statement
	params [][]byte
	answer chan answer
	own    bool // its caller has a lane for it
}

func (r *request) size() (n int) {
	for _, p := range r.params {
		n += len(p)
	}
	return n
}

// answer is what came of a statement: its rows, in binary.
type answer struct {
	rows     [][][]byte
	timed    bool
	from, to driver.Instant // if timed: when it was sent, and when it had come
	err      error
	late     bool // the answer itself may still come
	unsent   bool // the server has surely not got the statement
}

func newLanes(pool *pgxpool.Pool, p *place, behind bool, timeout time.Duration, clock driver.Clock) *lanes {
	config := pool.Config()
	l := &lanes{pool: pool, place: p, behind: behind, timeout: timeout, clock: clock, broken: func() {}, free: config.MaxConns,
		users: callbacks{config.ConnConfig.OnNotice, config.ConnConfig.OnNotification}}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// do runs one statement. When ctx ends it returns at once, and the statement may take effect later.
func (l *lanes) do(ctx context.Context, st *statement, params ...[]byte) answer {
	return l.await(ctx, l.send(ctx, st, params...))
}

// send finds a lane for a statement, or lets it wait for one. It must be followed by await.
func (l *lanes) send(ctx context.Context, st *statement, params ...[]byte) *request {
	r := &request{ctx: ctx, st: st, params: params, answer: make(chan answer, 1)}
	if err := ctx.Err(); err != nil {
		r.answer <- answer{err: err, unsent: true}
		return r
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life.Err() != nil {
		r.answer <- answer{err: driver.ErrClosed, unsent: true}
		return r
	}
	if l.free > 0 {
		l.free--
		l.running.Add(1)
		if r.own = r.size() <= maxSize; r.own { // and so sent without delay
			return r
		}
		go l.carry()
	}
	l.queue = append(l.queue, r)
	return r
}

// await gives the answer, which comes once.
func (l *lanes) await(ctx context.Context, r *request) answer {
	if r.own {
		r.own = false
		if !l.trip(ctx, []*request{r}) {
			return answer{err: ctx.Err(), late: true}
		}
		if l.done() {
			go l.carry()
		}
	}
	select {
	case a := <-r.answer:
		return a
	default:
	}
	select {
	case a := <-r.answer:
		return a
	case <-ctx.Done():
		return answer{err: ctx.Err(), late: true}
	case <-l.life.Done():
		return answer{err: driver.ErrClosed, late: true}
	}
}

// done frees a lane, unless something waits for it.
func (l *lanes) done() (more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) > 0 {
		return true
	}
	l.free++
	l.running.Done()
	return false
}

// carry uses a lane for what waits, until nothing does.
func (l *lanes) carry() {
	for l.done() {
		l.mu.Lock()
		size, n := 0, 0
		for n < min(len(l.queue), maxBatch) {
			if size += l.queue[n].size(); n > 0 && size > maxSize {
				break
			}
			n++
		}
		batch := slices.Clone(l.queue[:n])
		l.queue = slices.Delete(l.queue, 0, n)
		l.mu.Unlock()
		batch = slices.DeleteFunc(batch, func(r *request) bool {
			err := r.ctx.Err()
			if err != nil {
				r.answer <- answer{err: err, unsent: true} // nobody waits for it, and it was not sent
			}
			return err != nil
		})
		if len(batch) > 0 {
			l.trip(l.life, batch)
		}
	}
}

func (l *lanes) close() {
	l.mu.Lock()
	l.end()
	l.mu.Unlock()
	l.running.Wait()
}

// trip sends a batch and hands out its answers. If ctx ends in between it returns false, at once, and the lane goes on
// without the caller.
func (l *lanes) trip(ctx context.Context, batch []*request) bool {
	until := time.Now().Add(l.timeout)
	timed, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if ctx != l.life {
		defer context.AfterFunc(l.life, cancel)()
	}
	c, err := l.pool.Acquire(timed)
	if err != nil {
		if s := l.pool.Stat(); ctx.Err() == nil && timed.Err() != nil && l.life.Err() == nil && s.AcquiredConns() >= s.MaxConns() {
			err = exhausted(s.MaxConns())
		}
		if ctx.Err() == nil && !refused(err) { // a server that takes no more connections, or no more of ours, keeps those that stand
			l.broken()
		}
		l.fail(batch, answer{err: err, unsent: true})
		return true
	}
	t := &trip{lanes: l, batch: batch, conn: c, pg: c.Conn().PgConn()}
	goesOn := false // the answer may still come
	if err = t.send(); err == nil {
		err = t.receive(timed)
		timeout := net.Error(nil)
		goesOn = errors.As(err, &timeout) && timeout.Timeout()
	}
	if ctx == l.life || ctx.Err() == nil || l.life.Err() != nil || !goesOn {
		t.over(err)
		return true
	}
	go func() {
		timed, cancel := context.WithDeadline(l.life, until)
		defer cancel()
		t.over(t.receive(timed))
		l.carry()
	}()
	return false
}

// fail answers statements that will get no answer.
func (l *lanes) fail(batch []*request, a answer) {
	if l.life.Err() != nil {
		a.err = driver.ErrClosed
	}
	for _, r := range batch {
		r.answer <- a
	}
}

// trip is a batch on its way.
type trip struct {
	lanes   *lanes
	batch   []*request // what is not answered yet
	conn    *pgxpool.Conn
	pg      *pgconn.PgConn
	from    driver.Instant
	first   bool       // the first answer has not come
	rows    [][][]byte // of the answer that is coming
	done    bool       // the statement is done, and what comes now is said by its commit
	refusal error      // in the answer
	spoilt  bool       // the connection is of no use any more
}

var (
	binary  = []int16{1} // all results
	execute = &pgproto3.Execute{}
	atEnd   = &pgproto3.Sync{}
)

func (t *trip) send() error {
	f, known := t.pg.Frontend(), t.pg.CustomData()
	for i, r := range t.batch {
		name := r.st.name
		if t.lanes.behind {
			name = ""
		}
		same := func(other *request) bool { return other.st == r.st }
		if name == "" || known[name] == nil && !slices.ContainsFunc(t.batch[:i], same) {
			f.SendParse(&pgproto3.Parse{Name: name, Query: r.st.text})
		}
		f.SendBind(&pgproto3.Bind{PreparedStatement: name, ParameterFormatCodes: r.st.formats, Parameters: r.params, ResultFormatCodes: binary})
		f.SendExecute(execute)
		f.SendSync(atEnd)
	}
	t.from, t.first = t.lanes.clock.Now(), true
	if t.batch[0].size() > maxSize {
		_ = t.pg.Conn().SetWriteDeadline(time.Now().Add(t.lanes.timeout))
		defer t.pg.Conn().SetWriteDeadline(time.Time{})
	}
	return f.Flush()
}

// receive hands out answers as they come. After an error that is a time-out, as when ctx ends, it can be called again.
func (t *trip) receive(ctx context.Context) error {
	var mu sync.Mutex
	over := false
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			_ = t.pg.Conn().SetReadDeadline(time.Unix(1, 0))
		}
	})
	defer func() {
		if !stop() {
			mu.Lock()
			defer mu.Unlock()
			over = true
			_ = t.pg.Conn().SetReadDeadline(time.Time{})
		}
	}()
	for len(t.batch) > 0 {
		// Not by PgConn.ReceiveMessage: when a connection breaks, that has the server cancel what runs, and a commit that
		// waits for the standbys would go on without them.
		m, err := t.pg.Frontend().Receive()
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *pgproto3.ParseComplete:
			if !t.lanes.behind {
				t.pg.CustomData()[t.batch[0].st.name] = true
			}
		case *pgproto3.DataRow:
			t.rows = append(t.rows, clone(m.Values))
		case *pgproto3.ErrorResponse:
			t.refusal = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CommandComplete:
			t.done = true
		case *pgproto3.NoticeResponse:
			notice := pgconn.Notice(*pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(m)))
			if t.done && isWarning(&notice) {
				t.refusal = &committedAlone{notice.Message}
			}
			t.lanes.users.notice(t.pg, &notice)
		case *pgproto3.NotificationResponse:
			t.lanes.users.notification(t.pg, &pgconn.Notification{PID: m.PID, Channel: m.Channel, Payload: m.Payload})
		case *pgproto3.ParameterStatus:
			t.spoilt = true // the connection itself has to know it
		case *pgproto3.ReadyForQuery:
			a := answer{rows: t.rows, err: t.refusal}
			if t.batch[0].st.fromStandby(a.rows) && !t.lanes.place.justLooks() {
				a = answer{err: errStandby}
			}
			if t.first {
				a.timed, a.from, a.to = true, t.from, t.lanes.clock.Now()
			}
			t.spoilt = t.spoilt || a.err != nil && spoils(a.err)
			t.batch[0].answer <- a
			t.batch, t.rows, t.done, t.refusal, t.first = t.batch[1:], nil, false, nil, false
		}
	}
	return nil
}

// callbacks are what the pool's user wants to be told of its connections. They may be nil.
type callbacks struct {
	onNotice       pgconn.NoticeHandler
	onNotification pgconn.NotificationHandler
}

func (c callbacks) notice(pg *pgconn.PgConn, n *pgconn.Notice) {
	if c.onNotice != nil {
		c.onNotice(pg, n)
	}
}

func (c callbacks) notification(pg *pgconn.PgConn, n *pgconn.Notification) {
	if c.onNotification != nil {
		c.onNotification(pg, n)
	}
}

// fromStandby reports whether a standby has answered: what it knows may be old.
func (s *statement) fromStandby(rows [][][]byte) bool {
	return s.recovery > 0 && len(rows) > 0 && rows[0][s.recovery][0] != 0
}

// clone copies a row out of the connection's buffer.
func clone(row [][]byte) [][]byte {
	size := 0
	for _, v := range row {
		size += len(v)
	}
	all, to := make([]byte, 0, size), make([][]byte, len(row))
	for i, v := range row {
		if v != nil {
			all = append(all, v...)
			to[i] = all[len(all)-len(v) : len(all) : len(all)]
		}
	}
	return to
}

// over gives the connection back. What was sent and is not answered may have taken effect.
func (t *trip) over(err error) {
	if err != nil || t.spoilt {
		ctx, cancel := context.WithTimeout(context.Background(), t.lanes.timeout/10)
		_ = t.conn.Conn().Close(ctx)
		cancel()
	}
	t.conn.Release()
	if err != nil {
		t.lanes.broken()
		t.lanes.fail(t.batch, answer{err: errors.Join(t.refusal, err)})
	}
}
