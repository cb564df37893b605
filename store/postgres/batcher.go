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
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// batcher sends statements to the server over a few connections.
//
// A caller that finds a connection free sends its own statement on it. Statements that arrive while no
// connection is free are queued, and sent together as soon as one is: each is still a transaction of its
// own, and each caller gets its result as soon as it arrives. So many callers need few connections and
// few packets, and a single caller pays no more than for its statement.
//
// When the context of a caller ends, the caller returns at once and no connection is harmed: the
// statement that it has sent continues without it. pgx would close the connection instead, and cancel the
// statement on the server, which ends a commit's wait for the standbys: see readResults. That is why the
// batcher speaks the protocol itself (PostgreSQL manual, "Extended Query" and "Pipelining").
type batcher struct {
	pool          *pgxpool.Pool
	location      *location
	behindPooler  bool // nothing may be prepared for longer than a transaction
	timeout       time.Duration
	clock         driver.Clock
	userCallbacks callbacks
	onBrokenConn  func() // called when a connection breaks: idle ones may have broken with it

	life     *driverutil.Lifetime
	contexts *batchContexts

	mu        sync.Mutex
	freeConns int32      // how many more connections the batcher may use
	queue     []*request // statements that wait for a connection
	// running counts connections in use and not goroutines, because the caller itself may be what uses one. It is
	// added to only with mu held and before the end of life.
	running sync.WaitGroup
}

const (
	// maxBatch is how many statements are sent at once.
	maxBatch = 16
	// maxBatchBytes is how many bytes are sent before replies are read, besides the first statement. It
	// must fit into the buffers on the way: the server stops reading while its own replies are not read,
	// and then neither side would go on. (The manual, under "Pipelining", warns of this deadlock.)
	maxBatchBytes = 16 << 10
	// minConnPause and maxConnPause bound the pauses between attempts to connect to a server that has no connection
	// left.
	minConnPause, maxConnPause = 5 * time.Millisecond, 200 * time.Millisecond
)

// statement is one kind of statement. Each connection prepares it once, which saves the server from parsing and
// planning it each time.
type statement struct {
	name, text    string
	formats       []int16 // formats of its parameters
	standbyColumn int     // the column that says whether the server is a standby; 0: it runs on a primary only
}

// newStatement makes a statement. Its name on the server is the hash of its text, so that two versions of
// this package can share a connection of a user's pool.
func newStatement(text string, formats ...int16) *statement {
	h := fnv.New64a()
	h.Write([]byte(text))
	return &statement{name: "holdfast_" + strconv.FormatUint(h.Sum64(), 36), text: text, formats: formats}
}

// request is a statement with its parameters, and the place for its one result.
type request struct {
	ctx         context.Context
	statement   *statement
	params      [][]byte
	callerSends bool          // a connection is reserved, and the caller sends the statement itself
	answered    chan struct{} // closed when result is there; nil if the caller itself gets the result
	result      result
}

func (r *request) answer(a result) {
	r.result = a
	if r.answered != nil {
		close(r.answered)
	}
}

// paramsSize is what a batch must not exceed: see maxBatchBytes.
func (r *request) paramsSize() (n int) {
	for _, p := range r.params {
		n += len(p)
	}
	return n
}

// result is what came of a statement: its rows in binary, or an error.
type result struct {
	rows               [][][]byte
	isTimed            bool
	sentAt, receivedAt driver.Instant // if isTimed
	err                error
	stillPending       bool // the real result may still arrive in the request
	notSent            bool // the server certainly did not receive the statement
}

func newBatcher(pool *pgxpool.Pool, p *location, behind bool, timeout time.Duration, clock driver.Clock) *batcher {
	config := pool.Config()
	l := &batcher{pool: pool, location: p, behindPooler: behind, timeout: timeout, clock: clock,
		onBrokenConn: func() {}, freeConns: config.MaxConns, life: driverutil.NewLifetime(),
		userCallbacks: callbacks{config.ConnConfig.OnNotice, config.ConnConfig.OnNotification}}
	l.contexts = newBatchContexts(l.life)
	return l
}

// runStatement runs one statement. It returns at once when ctx ends; the statement may take effect later.
func (b *batcher) runStatement(ctx context.Context, st *statement, params ...[]byte) result {
	return b.awaitResult(ctx, b.submitRequest(ctx, st, params...))
}

// submitRequest reserves a connection for a statement, or queues it. awaitResult must follow: where a
// connection is reserved, that is what sends the statement.
func (b *batcher) submitRequest(ctx context.Context, st *statement, params ...[]byte) *request {
	r := &request{ctx: ctx, statement: st, params: params}
	if err := ctx.Err(); err != nil {
		r.result = result{err: err, notSent: true}
		return r
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		r.result = result{err: driver.ErrClosed, notSent: true}
		return r
	}
	if b.freeConns > 0 {
		b.freeConns--
		b.running.Add(1)
		if r.callerSends = r.paramsSize() <= maxBatchBytes; r.callerSends { // small enough to be sent without delay
			return r
		}
		go b.sendQueued()
	}
	r.answered = make(chan struct{})
	b.queue = append(b.queue, r)
	return r
}

// awaitResult returns the result.
func (b *batcher) awaitResult(ctx context.Context, r *request) result {
	if r.callerSends {
		r.callerSends = false
		if !b.sendBatch(ctx, []*request{r}) {
			return result{err: ctx.Err(), stillPending: true}
		}
		if b.releaseConn() {
			go b.sendQueued()
		}
	}
	if r.answered == nil {
		return r.result
	}
	// First without the other cases: a result that is there counts, even if ctx has ended as well.
	select {
	case <-r.answered:
		return r.result
	default:
	}
	select {
	case <-r.answered:
		return r.result
	case <-ctx.Done():
		return result{err: ctx.Err(), stillPending: true}
	case <-b.life.Done():
		return result{err: driver.ErrClosed, stillPending: true}
	}
}

// releaseConn makes a connection free again, unless statements are queued. Then it reports true, and the
// caller must send them.
func (b *batcher) releaseConn() (more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 {
		return true
	}
	b.freeConns++
	b.running.Done()
	return false
}

// sendQueued sends queued statements on one connection until none is left.
func (b *batcher) sendQueued() {
	for b.releaseConn() {
		b.mu.Lock()
		size, n := 0, 0
		for n < min(len(b.queue), maxBatch) {
			if size += b.queue[n].paramsSize(); n > 0 && size > maxBatchBytes {
				break
			}
			n++
		}
		batch := slices.Clone(b.queue[:n])
		b.queue = slices.Delete(b.queue, 0, n)
		b.mu.Unlock()
		batch = slices.DeleteFunc(batch, func(r *request) bool {
			err := r.ctx.Err()
			if err != nil {
				r.answer(result{err: err, notSent: true}) // its caller has gone, and it was not sent
			}
			return err != nil
		})
		if len(batch) > 0 {
			b.sendBatch(b.life, batch)
		}
	}
}

// close ends what is running and waits for it. Queued statements get ErrClosed.
func (b *batcher) close() {
	b.mu.Lock()
	b.life.End()
	b.mu.Unlock()
	b.contexts.endAll()
	b.running.Wait()
	b.contexts.close()
}

// sendBatch sends statements and hands out their results. If ctx ends before all results are there, it
// returns false at once, and a goroutine reads the rest on the same connection: see request.answered.
func (b *batcher) sendBatch(ctx context.Context, batch []*request) bool {
	until := time.Now().Add(b.timeout)
	timed := b.contexts.add(ctx, until)
	defer timed.leave()
	c, err := b.acquireConn(timed)
	if err != nil {
		s := b.pool.Stat()
		if ctx.Err() == nil && timed.Err() != nil && b.life.Err() == nil && s.AcquiredConns() >= s.MaxConns() {
			err = poolExhaustedError(s.MaxConns())
		}
		if ctx.Err() == nil && !isConnRefused(err) {
			b.onBrokenConn()
		}
		b.failRequests(batch, result{err: err, notSent: true})
		return true
	}
	t := &sentBatch{batcher: b, unanswered: batch, conn: c, pg: c.Conn().PgConn()}
	goesOn := false // the connection works, and results may still arrive
	if err = t.writeStatements(); err == nil {
		err = t.readResults(timed)
		timeout := net.Error(nil)
		goesOn = errors.As(err, &timeout) && timeout.Timeout()
	}
	if ctx == b.life || ctx.Err() == nil || b.life.Err() != nil || !goesOn {
		t.finishBatch(err)
		return true
	}
	// The caller has gone. What it has sent may take effect, so its results are read until the same deadline, and the
	// connection is used again.
	for _, r := range t.unanswered {
		r.answered = make(chan struct{})
	}
	go b.readRest(t, until)
	return false
}

// readRest reads the results for which nobody waits, and then goes on with what is queued.
func (b *batcher) readRest(t *sentBatch, until time.Time) {
	timed := b.contexts.add(b.life, until)
	t.finishBatch(t.readResults(timed))
	timed.leave()
	b.sendQueued()
}

// acquireConn takes a connection from the pool. The pool makes a new one while the others are busy. If the server
// refuses it because there are too many, one of the existing connections is waited for: it still works, and a holder
// may depend on it.
func (b *batcher) acquireConn(ctx context.Context) (*pgxpool.Conn, error) {
	for pause := minConnPause; ; pause = min(2*pause, maxConnPause) {
		c, err := b.pool.Acquire(ctx)
		if err == nil || !hasNoConnLeft(err) {
			return c, err
		}
		if s := b.pool.Stat(); s.AcquiredConns()+s.IdleConns() == 0 {
			return nil, err
		}
		if b.life.Sleep(ctx, pause) != nil {
			return nil, err
		}
	}
}

// failRequests gives an error to statements that will get no other result.
func (b *batcher) failRequests(batch []*request, a result) {
	if b.life.Err() != nil {
		a.err = driver.ErrClosed
	}
	for _, r := range batch {
		r.answer(a)
	}
}

// sentBatch is a batch that was sent and is not answered yet.
type sentBatch struct {
	batcher     *batcher
	unanswered  []*request // in the order of their results
	conn        *pgxpool.Conn
	pg          *pgconn.PgConn
	sentAt      driver.Instant
	awaitsFirst bool       // the first result has not arrived; only its time says something about the server's clock
	rows        [][][]byte // of the result that is arriving
	completed   bool       // the statement is done: what arrives now comes from its commit
	refusal     error      // of the statement whose result is arriving
	unusable    bool       // the connection must be closed
}

var (
	binaryResults  = []int16{1} // for all columns
	executeMessage = &pgproto3.Execute{}
	syncMessage    = &pgproto3.Sync{}
)

// writeStatements writes all statements at once. Each is followed by a Sync, which makes it a transaction
// of its own: one that fails does not undo the others. A statement that the connection does not know is
// prepared first, except behind a pooler, where the next transaction may use another connection to the
// server.
func (t *sentBatch) writeStatements() error {
	f, known := t.pg.Frontend(), t.pg.CustomData()
	for i, r := range t.unanswered {
		name := r.statement.name
		if t.batcher.behindPooler {
			name = ""
		}
		same := func(other *request) bool { return other.statement == r.statement }
		if name == "" || known[name] == nil && !slices.ContainsFunc(t.unanswered[:i], same) {
			f.SendParse(&pgproto3.Parse{Name: name, Query: r.statement.text})
		}
		f.SendBind(&pgproto3.Bind{PreparedStatement: name, ParameterFormatCodes: r.statement.formats,
			Parameters: r.params, ResultFormatCodes: binaryResults})
		f.SendExecute(executeMessage)
		f.SendSync(syncMessage)
	}
	t.sentAt, t.awaitsFirst = t.batcher.clock.Now(), true
	if t.unanswered[0].paramsSize() > maxBatchBytes {
		_ = t.pg.Conn().SetWriteDeadline(time.Now().Add(t.batcher.timeout))
		defer t.pg.Conn().SetWriteDeadline(time.Time{})
	}
	return f.Flush()
}

// readResults hands out results as they arrive. It returns an error that is a timeout when ctx ends; then
// it can be called again.
func (t *sentBatch) readResults(ctx *batchContext) error {
	ctx.beginReads(t.pg.Conn())
	defer ctx.endReads()
	for len(t.unanswered) > 0 {
		// PgConn.ReceiveMessage must not be used. When a connection breaks, it makes the server cancel the
		// running statement, and a commit that waits for the standbys would then finish without them.
		m, err := t.pg.Frontend().Receive()
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *pgproto3.ParseComplete:
			if !t.batcher.behindPooler {
				t.pg.CustomData()[t.unanswered[0].statement.name] = true
			}
		case *pgproto3.DataRow:
			t.rows = append(t.rows, cloneRow(m.Values))
		case *pgproto3.ErrorResponse:
			t.refusal = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CommandComplete:
			t.completed = true
		case *pgproto3.NoticeResponse:
			// The only sign that a commit did not wait for the standbys to the end is this warning, which comes
			// after the statement is complete: "The transaction has already committed locally, but might not have
			// been replicated to the standby."
			notice := pgconn.Notice(*pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(m)))
			if t.completed && isWarning(&notice) {
				t.refusal = &unreplicatedCommitError{notice.Message}
			}
			t.batcher.userCallbacks.forwardNotice(t.pg, &notice)
		case *pgproto3.NotificationResponse:
			t.batcher.userCallbacks.forwardNotification(t.pg,
				&pgconn.Notification{PID: m.PID, Channel: m.Channel, Payload: m.Payload})
		case *pgproto3.ParameterStatus:
			t.unusable = true // only pgx's own reader would note the new value
		case *pgproto3.ReadyForQuery:
			a := result{rows: t.rows, err: t.refusal}
			if t.unanswered[0].statement.isFromStandby(a.rows) && !t.batcher.location.mayReadStandby() {
				a = result{err: errStandbyReply}
			}
			if t.awaitsFirst {
				a.isTimed, a.sentAt, a.receivedAt = true, t.sentAt, t.batcher.clock.Now()
			}
			t.unusable = t.unusable || a.err != nil && isConnUnusable(a.err)
			t.unanswered[0].answer(a)
			t.unanswered, t.rows, t.completed, t.refusal, t.awaitsFirst = t.unanswered[1:], nil, false, nil, false
		}
	}
	return nil
}

// callbacks are the handlers that the user has set on the pool's connections. They may be nil.
type callbacks struct {
	onNotice       pgconn.NoticeHandler
	onNotification pgconn.NotificationHandler
}

func (c callbacks) forwardNotice(pg *pgconn.PgConn, n *pgconn.Notice) {
	if c.onNotice != nil {
		c.onNotice(pg, n)
	}
}

func (c callbacks) forwardNotification(pg *pgconn.PgConn, n *pgconn.Notification) {
	if c.onNotification != nil {
		c.onNotification(pg, n)
	}
}

// isRead reports whether a statement may run on a standby, so it changes nothing.
func (s *statement) isRead() bool { return s.standbyColumn > 0 }

// isFromStandby reports whether the reply came from a standby, whose data may be old.
func (s *statement) isFromStandby(rows [][][]byte) bool {
	return s.isRead() && len(rows) > 0 && rows[0][s.standbyColumn][0] != 0
}

// cloneRow copies a row: the connection reuses its buffer. One piece of memory holds all columns.
func cloneRow(row [][]byte) [][]byte {
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

// finishBatch gives the connection back to the pool. Statements that were sent and not answered may have
// taken effect.
func (t *sentBatch) finishBatch(err error) {
	if err != nil || t.unusable {
		ctx, cancel := context.WithTimeout(context.Background(), t.batcher.timeout/10)
		_ = t.conn.Conn().Close(ctx)
		cancel()
	}
	t.conn.Release()
	if err != nil {
		t.batcher.onBrokenConn()
		t.batcher.failRequests(t.unanswered, result{err: errors.Join(t.refusal, err)})
	}
}
