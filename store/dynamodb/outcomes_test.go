package dynamodb

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestOperatorsStepsAreTriedAgain: a request that failed ends no break, and no removal of a history, whether or not
// it took effect.
func TestOperatorsStepsAreTriedAgain(t *testing.T) {
	t.Parallel()
	for what, fate := range map[string]dynamodbtest.Fate{
		"reply lost": {DropReply: true},
		"not done":   {Status: 500, Code: "InternalServerError", Message: "later"},
	} {
		for name, step := range map[string]func(context.Context, driver.Ledger, driver.Grant) error{
			"Break": func(ctx context.Context, l driver.Ledger, g driver.Grant) error {
				return l.Break(ctx, g.Name, g.Ref, driver.Break{})
			},
			"Break by force": func(ctx context.Context, l driver.Ledger, g driver.Grant) error {
				return l.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakForce})
			},
			"ForgetRuns": func(ctx context.Context, l driver.Ledger, g driver.Grant) error {
				return errors.Join(l.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}), l.ForgetRuns(ctx, g.Name))
			},
		} {
			t.Run(what+", "+name, func(t *testing.T) {
				t.Parallel()
				table, p := newTableName(), newProxy(t, sharedServer(t).Direct)
				worker, other := ledgerAt(t, table, sharedServer(t).Endpoint, ""), ledgerAt(t, table, p.Endpoint, "")
				g := acquire(t, worker, runClaim(table, "k", time.Minute))
				failEachFirst(p, fate)
				if err := step(t.Context(), other, g); err != nil {
					t.Error(err)
				}
				if h := readRuns(t, worker, g.Name); name == "ForgetRuns" && len(h) > 0 {
					t.Errorf("the history is %+v", h)
				}
			})
		}
		t.Run(what+", Break of a lock", func(t *testing.T) {
			t.Parallel()
			table, p := newTableName(), newProxy(t, sharedServer(t).Direct)
			holder := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, "&layout=awslock"))
			other := mustOpen(t, urlOf(table, p.Endpoint, "&layout=awslock"))
			g := acquire(t, holder, mutexClaim("m", time.Minute))
			failEachFirst(p, fate)
			if err := other.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLateForget: an operator's removal of a history whose reply was lost does not remove what has begun meanwhile.
func TestLateForget(t *testing.T) {
	t.Parallel()
	table, p := newTableName(), newProxy(t, sharedServer(t).Direct)
	worker, other := ledgerAt(t, table, sharedServer(t).Endpoint, ""), ledgerAt(t, table, p.Endpoint, "")
	c := runClaim(table, "k", time.Minute)
	fail(t, worker, acquire(t, worker, c))
	var lost, begun bool
	p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
		switch {
		case r.Operation == "PutItem" && !lost:
			lost = true
			return dynamodbtest.Fate{DropReply: true}
		case lost && !begun:
			begun = true
			fail(t, worker, acquire(t, worker, runClaim(table, "k", time.Minute)))
		}
		return dynamodbtest.Fate{}
	})
	if err := other.ForgetRuns(t.Context(), c.Name); err != nil {
		t.Fatal(err)
	}
	if h := readRuns(t, worker, c.Name); !begun || len(h) != 1 {
		t.Errorf("begun %v, and the history is %+v", begun, h)
	}
}

// failEachFirst makes a fate that of the first request of each operation.
func failEachFirst(p *dynamodbtest.Proxy, fate dynamodbtest.Fate) {
	var seen sync.Map
	p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
		if _, again := seen.LoadOrStore(r.Operation, true); again {
			return dynamodbtest.Fate{}
		}
		return fate
	})
}

// TestOutcomeOfRunsEnd: the end of a run is uncertain if and only if a write of it may have been made. So it is not
// while only reads fail, nor if the service refuses everything from the first request on. If it does so after a write
// whose reply was lost, that is no answer.
func TestOutcomeOfRunsEnd(t *testing.T) {
	t.Parallel()
	isRead := func(r dynamodbtest.Request) bool { return r.Operation == "GetItem" || r.Operation == "Query" }
	away := dynamodbtest.Fate{Status: 500, Code: "InternalServerError", Message: "later"}
	denied := dynamodbtest.Fate{Status: 400, Code: "AccessDeniedException", Message: "not authorized"}
	for what, c := range map[string]struct {
		decide    func(writes *int, r dynamodbtest.Request) dynamodbtest.Fate
		want      error
		uncertain bool
	}{
		"reads fail": {func(_ *int, r dynamodbtest.Request) dynamodbtest.Fate {
			if isRead(r) {
				return away
			}
			return dynamodbtest.Fate{}
		}, context.DeadlineExceeded, false},
		"writes fail": {func(_ *int, r dynamodbtest.Request) dynamodbtest.Fate {
			if !isRead(r) {
				return away
			}
			return dynamodbtest.Fate{}
		}, context.DeadlineExceeded, true},
		"refused": {func(*int, dynamodbtest.Request) dynamodbtest.Fate { return denied }, driver.ErrDenied, false},
		"refused after a lost reply": {func(writes *int, r dynamodbtest.Request) dynamodbtest.Fate {
			switch {
			case *writes > 0:
				return denied
			case isRead(r):
				return dynamodbtest.Fate{}
			}
			*writes++
			return dynamodbtest.Fate{DropReply: true}
		}, driver.ErrDenied, true},
	} {
		for name, end := range map[string]func(context.Context, *ledger, driver.Grant) error{
			"FinishRun": func(ctx context.Context, l *ledger, g driver.Grant) error {
				return l.FinishRun(ctx, g, succeeded("done"))
			},
			"Release": func(ctx context.Context, l *ledger, g driver.Grant) error { return l.Release(ctx, g.Claim, "") },
		} {
			t.Run(what+", "+name, func(t *testing.T) {
				t.Parallel()
				table, p := newTableName(), newProxy(t, sharedServer(t).Direct)
				worker, other := ledgerAt(t, table, sharedServer(t).Endpoint, ""), ledgerAt(t, table, p.Endpoint, "")
				g := acquire(t, worker, runClaim(table, "k", time.Minute))
				var writes int
				p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate { return c.decide(&writes, r) })
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if c.want != context.DeadlineExceeded {
					ctx, cancel = context.WithCancel(t.Context())
				}
				defer cancel()
				err := end(ctx, other, g)
				if !errors.Is(err, c.want) || errors.Is(err, driver.ErrUncertain) != c.uncertain {
					t.Errorf("unexpected error %v", err)
				}
			})
		}
	}
}
