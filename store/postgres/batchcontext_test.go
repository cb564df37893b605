package postgres

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// TestBatchContext: a read that waits for the server ends at once with the caller's context or with the store, and at
// the deadline, however the deadlines of others lie. Afterwards the connection can be read from without limit.
func TestBatchContext(t *testing.T) {
	type life = *driverutil.Lifetime
	for name, test := range map[string]struct {
		end   func(s *batchContexts, engine life, cancel func()) // after a second
		after time.Duration
		want  error
	}{
		"caller":   {func(_ *batchContexts, _ life, cancel func()) { cancel() }, time.Second, context.Canceled},
		"engine":   {func(_ *batchContexts, engine life, _ func()) { engine.End() }, time.Second, context.Canceled},
		"store":    {func(s *batchContexts, _ life, _ func()) { s.life.End(); s.endAll() }, time.Second, context.Canceled},
		"deadline": {func(*batchContexts, life, func()) {}, 10 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newBatchContexts(driverutil.NewLifetime())
				defer s.close()
				defer s.life.End()
				began := time.Now()
				for _, until := range []time.Duration{time.Minute, 3 * time.Second} { // set the timer too late, and too early
					defer s.add(t.Context(), began.Add(until)).leave()
				}
				client, server := net.Pipe()
				defer client.Close()
				defer server.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				engine := driverutil.NewLifetime()
				defer engine.End()
				bound, done := engine.Bind(ctx)
				defer done()
				time.AfterFunc(time.Second, func() { test.end(s, engine, cancel) })
				c := s.add(bound, began.Add(10*time.Second))
				c.beginReads(client)
				_, err := client.Read(make([]byte, 1))
				c.endReads()
				if !errors.Is(err, os.ErrDeadlineExceeded) || c.Err() != test.want || time.Since(began) != test.after {
					t.Errorf("the read: %v, the context: %v, after %v", err, c.Err(), time.Since(began))
				}
				<-c.Done()
				c.leave()
				expectRead(t, client, server)
			})
		})
	}
}

// TestBatchContextAnswered: a context that ends when its results are there does not touch the connection.
func TestBatchContextAnswered(t *testing.T) {
	s := newBatchContexts(driverutil.NewLifetime())
	defer s.close()
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	c := s.add(t.Context(), time.Now().Add(time.Minute))
	defer c.leave()
	c.beginReads(client)
	expectRead(t, client, server)
	c.endReads()
	s.life.End()
	s.endAll()
	expectRead(t, client, server)
	late := s.add(t.Context(), time.Now().Add(time.Minute))
	defer late.leave()
	if late.Err() == nil {
		t.Error("a batch is sent after the end")
	}
}

func expectRead(t *testing.T, client, server net.Conn) {
	t.Helper()
	go server.Write([]byte("1"))
	if _, err := client.Read(make([]byte, 1)); err != nil {
		t.Errorf("a read of the connection's next user: %v", err)
	}
}
