package fence

import (
	"context"
	"database/sql"
	"sync"
)

// MemoryGate is a [Gate] in the memory of one process. It forgets its tokens when the process ends: from then on,
// until a newer holder has written, a stale one is not rejected. And it does not know what other processes have seen.
// So it is for a service that is alone, and whose data do not outlive it, or for tests; others use [NewSQLGate].
//
// It keeps some 200 bytes per name that it has seen. The zero value is ready to use.
type MemoryGate struct {
	mu        sync.Mutex
	resources map[string]*gateState
}

// gateState is what a MemoryGate knows of a resource.
type gateState struct {
	largest Token
	current int           // how many writers with the largest token are in
	older   int           // how many writers with smaller tokens are still in
	drained chan struct{} // closed when older becomes 0; nil while it is 0
}

// Enter implements [Gate].
func (g *MemoryGate) Enter(ctx context.Context, resource string, t Token) (leave func(), err error) {
	if err := checkWrite(ctx, resource, t); err != nil {
		return nil, err
	}
	for {
		s, drained := g.tryEnter(resource, t)
		switch {
		case s == nil:
			return nil, &StaleError{Resource: resource, Token: t, Largest: g.largestOf(resource)}
		case drained == nil:
			return sync.OnceFunc(func() { g.leave(s, t) }), nil
		}
		select {
		case <-drained:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tryEnter lets a writer in if nobody with a smaller token is in. It returns no state if the token is stale, and a
// channel to wait for if older writers are in.
func (g *MemoryGate) tryEnter(resource string, t Token) (s *gateState, drained <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.resources == nil {
		g.resources = map[string]*gateState{}
	}
	s = g.resources[resource]
	if s == nil {
		s = &gateState{}
		g.resources[resource] = s
	}
	switch {
	case t < s.largest:
		return nil, nil
	case t > s.largest:
		s.largest = t
		s.older, s.current = s.older+s.current, 0
		if s.older > 0 && s.drained == nil {
			s.drained = make(chan struct{})
		}
	}
	if s.older > 0 {
		return s, s.drained
	}
	s.current++
	return s, nil
}

// leave counts a call that has ended. The last one with an older token lets the newer ones go on.
func (g *MemoryGate) leave(s *gateState, t Token) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t == s.largest {
		s.current--
		return
	}
	if s.older--; s.older == 0 {
		close(s.drained)
		s.drained = nil
	}
}

func (g *MemoryGate) largestOf(resource string) Token {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.resources[resource].largest
}

// sqlGate is a Gate in a database.
type sqlGate struct {
	fence *SQL
	db    *sql.DB
}

// NewSQLGate returns a [Gate] that keeps the largest tokens in the table of a fence, for a service with several
// processes. While a writer is in, a transaction holds the row of its resource: each request takes a connection, and
// requests for one resource come one after the other, also those with the same token. So db should be a pool of its
// own: if requests that wait have taken all its connections, a handler that needs one of them waits forever.
//
// If the connection to the database breaks while a writer is in, the next holder may enter before the writer has left.
// A handler that writes to the same database should check its token in its own transaction instead: see [SQL.Check].
func NewSQLGate(f *SQL, db *sql.DB) Gate { return &sqlGate{f, db} }

// Enter implements [Gate]. The token is committed before the writer enters: if the process dies after it has written,
// the token is remembered nevertheless.
func (g *sqlGate) Enter(ctx context.Context, resource string, t Token) (leave func(), err error) {
	if err := checkWrite(ctx, resource, t); err != nil {
		return nil, err
	}
	if g.fence == nil || g.db == nil {
		return nil, invalid("the gate has no fence or no database: give both to NewSQLGate")
	}
	tx, err := g.begin(ctx, resource, t)
	if err != nil {
		return nil, err
	}
	if err := tx.Commit(); err != nil {
		return nil, err
	}
	// database/sql ends a transaction with its context, and this one must last until the writer has left, which may be
	// after ctx has ended. Until it has begun, ctx ends it.
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	stopEnding := context.AfterFunc(ctx, end)
	if tx, err = g.begin(lasting, resource, t); err != nil {
		end()
		return nil, err
	}
	if !stopEnding() {
		end()
		return nil, context.Cause(ctx)
	}
	return func() {
		_ = tx.Rollback() // nothing was changed in it
		end()
	}, nil
}

// begin begins a transaction that has checked a token.
func (g *sqlGate) begin(ctx context.Context, resource string, t Token) (*sql.Tx, error) {
	tx, err := g.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := g.fence.Check(ctx, tx, resource, t); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx, nil
}
