package postgres

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
)

// lanes carry statements to the server over a few connections: each takes what has gathered while it was busy, sends it in
// one go, each statement a transaction of its own, and hands out the answers as they come. So many callers cost few
// connections and few packets, and a caller whose context ends goes his way without harming a connection: what was sent
// goes on beside him.
type lanes struct {
	pool    *pgxpool.Pool
	behind  bool // a pooler is in between: nothing may be prepared for longer than a transaction
	timeout time.Duration
	clock   driver.Clock
	broken  func() // called when a connection broke: others that were idle may have broken with it

	work chan *request
	idle atomic.Int32
	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	count   int // lanes that have been opened
	running sync.WaitGroup
}

// maxBatch is how many statements a lane sends at once.
const maxBatch = 64

// statement is one kind of statement, which each connection prepares once.
type statement struct {
	name, text string
	formats    []int16 // of its parameters
}

func newStatement(text string, formats ...int16) *statement {
	h := fnv.New64a()
	h.Write([]byte(text))
	return &statement{name: "holdfast_" + strconv.FormatUint(h.Sum64(), 36), text: text, formats: formats}
}

var binary = []int16{1} // all results

type request struct {
	ctx    context.Context
	st     *statement
	params [][]byte
	answer chan answer
}

// answer is what came of a statement: its rows, in binary.
type answer struct {
	rows     [][][]byte
	from, to driver.Instant // when it was sent, and when answers began to come
	err      error
	late     bool // the answer itself may still come
}

func newLanes(pool *pgxpool.Pool, behind bool, timeout time.Duration, clock driver.Clock) *lanes {
	l := &lanes{pool: pool, behind: behind, timeout: timeout, clock: clock, broken: func() {}, work: make(chan *request, 4*maxBatch)}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// do runs one statement. When ctx ends it returns at once, and the statement may take effect later.
func (l *lanes) do(ctx context.Context, st *statement, params ...[]byte) answer {
	return l.await(ctx, l.send(ctx, st, params...))
}

// send hands a statement to a lane.
func (l *lanes) send(ctx context.Context, st *statement, params ...[]byte) *request {
	r := &request{ctx: ctx, st: st, params: params, answer: make(chan answer, 1)}
	if err := ctx.Err(); err != nil {
		r.answer <- answer{err: err}
		return r
	}
	if l.idle.Load() == 0 {
		l.open()
	}
	select {
	case l.work <- r:
	case <-ctx.Done():
		r.answer <- answer{err: ctx.Err()}
	case <-l.life.Done():
		r.answer <- answer{err: driver.ErrClosed}
	}
	return r
}

// await waits for the answer, which comes once.
func (l *lanes) await(ctx context.Context, r *request) answer {
	select {
	case a := <-r.answer:
		return a
	case <-ctx.Done():
		return answer{err: ctx.Err(), late: true}
	case <-l.life.Done():
		return answer{err: driver.ErrClosed, late: true}
	}
}

// open opens one more lane, up to as many as the pool has connections.
func (l *lanes) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life.Err() == nil && l.count < int(l.pool.Stat().MaxConns()) {
		l.count++
		l.running.Go(l.run)
	}
}

func (l *lanes) close() {
	l.mu.Lock()
	l.end()
	l.mu.Unlock()
	l.running.Wait()
}

func (l *lanes) run() {
	batch := make([]*request, 0, maxBatch)
	for {
		l.idle.Add(1)
		select {
		case r := <-l.work:
			l.idle.Add(-1)
			batch = append(batch[:0], r)
		case <-l.life.Done():
			return
		}
		for more := true; more && len(batch) < maxBatch; {
			select {
			case r := <-l.work:
				batch = append(batch, r)
			default:
				more = false
			}
		}
		batch = slices.DeleteFunc(batch, func(r *request) bool {
			err := r.ctx.Err()
			if err != nil {
				r.answer <- answer{err: err} // nobody waits for it, and it was not sent
			}
			return err != nil
		})
		if len(batch) == 0 {
			continue
		}
		answered, err := l.serve(batch)
		if err != nil {
			l.broken()
		}
		for _, r := range batch[answered:] {
			r.answer <- answer{err: err}
		}
	}
}

// serve sends a batch and answers it, up to the first one after which the connection is of no use.
func (l *lanes) serve(batch []*request) (answered int, err error) {
	ctx, cancel := context.WithTimeout(l.life, l.timeout)
	defer cancel()
	c, err := l.pool.Acquire(ctx)
	if err != nil {
		if s := l.pool.Stat(); ctx.Err() != nil && l.life.Err() == nil && s.AcquiredConns() >= s.MaxConns() {
			err = exhausted(s.MaxConns())
		}
		return 0, err
	}
	defer c.Release()
	statements := make([]*pgconn.StatementDescription, len(batch))
	for i, r := range batch {
		if l.behind {
			continue
		}
		if statements[i], err = c.Conn().Prepare(ctx, r.st.name, r.st.text); err != nil {
			return 0, err
		}
	}
	conn := c.Conn().PgConn()
	_ = conn.Conn().SetDeadline(time.Now().Add(l.timeout))
	defer context.AfterFunc(l.life, func() { _ = conn.Conn().SetDeadline(time.Unix(1, 0)) })()
	p := conn.StartPipeline(context.Background()) // its time is bounded by the deadline
	from := l.clock.Now()
	for i, r := range batch {
		if l.behind {
			p.SendQueryParams(r.st.text, r.params, nil, r.st.formats, binary)
		} else {
			p.SendQueryStatement(statements[i], r.params, r.st.formats, binary)
		}
		p.SendPipelineSync()
	}
	err = p.Flush()
	var to driver.Instant
	spoilt := false
	for err == nil && answered < len(batch) {
		a := answer{from: from}
		if a.rows, a.err = result(p); conn.IsClosed() {
			err = a.err
			break
		}
		if answered == 0 {
			to = l.clock.Now()
		}
		a.to = to
		spoilt = spoilt || spoils(a.err)
		batch[answered].answer <- a
		answered++
	}
	if cerr := p.Close(); err == nil && cerr != nil && answered < len(batch) {
		err = cerr
	}
	if spoilt {
		_ = c.Conn().Close(ctx)
	}
	_ = conn.Conn().SetDeadline(time.Time{})
	return answered, err
}

// result reads one statement's answer, up to the end of its transaction: an error in between is the statement's.
func result(p *pgconn.Pipeline) (rows [][][]byte, err error) {
	for {
		got, e := p.GetResults()
		err = errors.Join(err, e)
		switch got := got.(type) {
		case *pgconn.ResultReader:
			for got.NextRow() {
				row := make([][]byte, len(got.Values()))
				for i, v := range got.Values() {
					row[i] = slices.Clone(v)
				}
				rows = append(rows, row)
			}
			_, e := got.Close()
			err = errors.Join(err, e)
		case *pgconn.PipelineSync:
			return rows, err
		case nil:
			var refused *pgconn.PgError
			if !errors.As(e, &refused) {
				return nil, cmp.Or(err, errors.New("the connection's answers have ended"))
			}
		}
	}
}
