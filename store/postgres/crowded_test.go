package postgres

import (
	"sync"
	"testing"
	"time"
)

// TestNoMoreConnections: a server that takes no more connections costs a store none of those it has: a holder lives on.
func TestNoMoreConnections(t *testing.T) {
	t.Parallel()
	s := server(t)
	opened(t, s.URL("test")+"?sslmode=disable&schema=square&create=true")
	exec(t, s, `create role crowd login; grant usage on schema square to crowd; grant select, insert, update, delete on square.holdfast to crowd`)
	st := opened(t, s.URL("crowd")+"?sslmode=disable&schema=square")
	g := acquire(t, st, mutex("m", time.Minute))
	exec(t, s, `alter role crowd connection limit 0`)
	for range 3 {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { _, _ = st.Inspect(t.Context(), "m") }) // those for whom no connection is free are refused one
		}
		all.Wait()
		if r := renew(t, st, g); r.Err != nil {
			t.Fatalf("on the connection that stands: %v", r.Err)
		}
	}
}
