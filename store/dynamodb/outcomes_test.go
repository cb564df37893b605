package dynamodb

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestOutcomeOfRunsEnd: the end of a run is uncertain if and only if a write of it may have been made. So it is not while
// only reads fail, nor if the service refuses everything from the first request on. If it does so after a write whose
// reply was lost, that is no answer.
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
