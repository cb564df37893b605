package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestLedgerRows: the rows are those of the layout. A plain worker reads ours, and its run is shown in our history. The
// heartbeat is neither a row nor among the items of the event.
func TestLedgerRows(t *testing.T) {
	t.Parallel()
	table := newTableName()
	l, w := ledgerAt(t, table, sharedServer(t).Endpoint, ""), newPlainWorker(t, table)
	c := runClaim(table, "job1", time.Minute)
	first := acquire(t, l, c)
	if err := renew(t, l, first).Err; err != nil {
		t.Fatal(err)
	}
	w.mustNotBegin(t, "job1")
	fail(t, l, first)
	w.mustEnd(t, "job1", w.mustBegin(t, "job1"), "failed")
	last := acquire(t, l, runClaim(table, "job1", time.Minute))
	w.mustNotBegin(t, "job1")
	succeed(t, l, last, "42 rows")
	w.mustNotBegin(t, "job1")
	if last.Attempt != 3 || last.Token <= first.Token {
		t.Errorf("the grants are %+v and %+v", first, last)
	}
	const want = "1:started 2:failed 3:started 4:failed 5:started 6:succeeded"
	if got := w.rows(t, "job1"); got != want {
		t.Errorf("the rows are %s, want %s", got, want)
	}
	for _, sequence := range []int64{1, 5} {
		row := w.row(t, "job1", sequence)
		if _, err := time.Parse(time.RFC3339, stringOf(row["created_at"])); err != nil ||
			numberOf(row["atomic_counter"]) != "1" {
			t.Errorf("the start is %v (%v)", row, err)
		}
	}
	if heartbeats := w.itemsWithoutStatus(t); len(heartbeats) != 1 || !strings.HasPrefix(heartbeats[0], controlPrefix) {
		t.Errorf("the items that are no rows have the keys %q", heartbeats)
	}
	runs := readRuns(t, l, c.Name)
	if statesOf(runs) != " failed failed succeeded" || runs[0].Error != "no" || string(runs[2].Result) != "42 rows" ||
		runs[1].Owner != foreignOwner || runs[1].Token != 0 || runs[1].Attempt != 2 || runs[1].EndedAt.IsZero() {
		t.Errorf("the history is %+v", runs)
	}
	w.mustEnd(t, "job2", w.mustBegin(t, "job2"), "succeeded")
	job2 := mustRefuseRun(t, l, runClaim(table, "job2", time.Minute), driver.ErrSucceeded)
	if job2.Run.Attempt != 1 {
		t.Errorf("the refusal is %+v", job2)
	}
	w.mustBegin(t, "job3")
	refused := mustRefuseRun(t, l, runClaim(table, "job3", time.Minute), driver.ErrInProgress)
	if h := refused.Held.Holders; len(h) != 1 || !h[0].Foreign {
		t.Errorf("the holders are %+v", h)
	}
	listed := map[string]string{}
	for h, err := range l.ListRuns(t.Context(), table+"/job") {
		if err != nil {
			t.Fatal(err)
		}
		listed[strings.TrimPrefix(h.Key, table+"/")] = fmt.Sprint(h.Runs[0].Attempt, statesOf(h.Runs))
	}
	wantListed := map[string]string{"job1": "3 succeeded", "job2": "1 succeeded", "job3": "1 started"}
	if !maps.Equal(listed, wantListed) {
		t.Errorf("listed are %q", listed)
	}
}

// TestLedgerPlainWorkers: plain workers and ours share a table. While a worker runs an event, nobody else does, and
// each event succeeds once.
func TestLedgerPlainWorkers(t *testing.T) {
	t.Parallel()
	events := 40
	if *prove {
		events = 1000
	}
	const workers, deliveries = 3, 6
	table := newTableName()
	plain := newPlainWorker(t, table)
	var ours []*ledger
	for range workers {
		ours = append(ours, ledgerAt(t, table, sharedServer(t).Endpoint, ""))
	}
	var wg sync.WaitGroup
	running, successes := make([]atomic.Int32, events), make([]atomic.Int32, events)
	var byPlain, byOurs atomic.Int64
	work := func(event int, by *atomic.Int64, end func(status string) error) {
		by.Add(1)
		if running[event].Add(1) != 1 {
			t.Errorf("event %d runs twice at once", event)
		}
		status := "succeeded"
		if rand.IntN(2) == 0 {
			status = "failed"
		} else if successes[event].Add(1) != 1 {
			t.Errorf("event %d succeeds twice", event)
		}
		running[event].Add(-1)
		if err := end(status); err != nil {
			t.Error(err)
		}
	}
	for event := range events {
		key := fmt.Sprint("event", event)
		for i := range workers {
			wg.Go(func() {
				for range deliveries {
					sequence, err := plain.begin(t.Context(), key)
					if err != nil {
						t.Error(err)
					} else if sequence != 0 {
						work(event, &byPlain, func(status string) error {
							return plain.end(t.Context(), key, sequence, status)
						})
					}
				}
			})
			wg.Go(func() {
				for range deliveries {
					g, err := ours[i].Acquire(t.Context(), runClaim(table, key, time.Minute))
					var refused *driver.RunError
					if err == nil {
						work(event, &byOurs, func(status string) error {
							return ours[i].FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunState(status)})
						})
					} else if !errors.As(err, &refused) {
						t.Error(err)
					}
				}
			})
		}
		if event%8 == 7 {
			wg.Wait()
		}
	}
	wg.Wait()
	for event := range events {
		key := fmt.Sprint("event", event)
		for successes[event].Load() == 0 { // an event that has always failed
			g := acquire(t, ours[0], runClaim(table, key, time.Minute))
			successes[event].Add(1)
			succeed(t, ours[0], g, "")
		}
		runs := readRuns(t, ours[0], table+"/"+key)
		var token int64
		for i, r := range runs {
			isLast := i == len(runs)-1
			if (r.State == driver.RunSucceeded) != isLast || !isLast && r.State != driver.RunFailed ||
				r.Attempt != int64(i)+1 ||
				r.Token != 0 && r.Token <= token {
				t.Errorf("run %d of %s is %+v", i+1, key, r)
			}
			token = max(token, r.Token)
		}
	}
	t.Logf("%d events: %d runs of plain workers, %d of ours, none of an event at the same time", events, byPlain.Load(),
		byOurs.Load())
}

// TestLedgerCollision: of two starts that aim at the same row the first one has the run, even if a plain worker and
// ours collide. The other one changes nothing by which the winner knows its run.
func TestLedgerCollision(t *testing.T) {
	t.Parallel()
	table := newTableName()
	p := newProxy(t, sharedServer(t).Direct)
	l, other := ledgerAt(t, table, p.Endpoint, ""), ledgerAt(t, table, sharedServer(t).Endpoint, "")
	w := newPlainWorker(t, table)

	onceBefore(p, "UpdateItem", func() { w.mustBegin(t, "plain") })
	mustRefuseRun(t, l, runClaim(table, "plain", time.Minute), driver.ErrInProgress)
	if n := numberOf(w.row(t, "plain", 1)["atomic_counter"]); n != "2" {
		t.Errorf("the counter of the collision is %s", n)
	}
	if runs := readRuns(t, other, table+"/plain"); len(runs) != 1 || runs[0].Owner != foreignOwner {
		t.Errorf("the runs are %+v", runs)
	}
	mustRefuseRun(t, other, runClaim(table, "plain", time.Minute), driver.ErrInProgress)

	var winner driver.Grant
	onceBefore(p, "UpdateItem", func() { winner = acquire(t, other, runClaim(table, "ours", time.Minute)) })
	refused := mustRefuseRun(t, l, runClaim(table, "ours", time.Minute), driver.ErrInProgress)
	if refused.Run.ID != winner.ID || refused.Run.Token != winner.Token {
		t.Errorf("the run in progress is %+v, and the winner is %+v", refused.Run, winner)
	}
	succeed(t, other, winner, "")

	g := acquire(t, l, runClaim(table, "late", time.Minute))
	if counter, err := w.start(t.Context(), "late", 1, "1999-01-01T00:00:00Z"); err != nil || counter != "2" {
		t.Errorf("a late start of a plain worker gets %q (%v)", counter, err)
	}
	if err := renew(t, l, g).Err; err != nil {
		t.Error(err)
	}
	mustRefuseRun(t, other, runClaim(table, "late", time.Minute), driver.ErrInProgress)
	succeed(t, l, g, "")
	if counter, err := w.start(t.Context(), "late", 1, "1999-01-01T00:00:00Z"); err != nil || counter != "3" {
		t.Errorf("a start of a plain worker after the end gets %q (%v)", counter, err)
	}
	if runs := readRuns(t, other, table+"/late"); statesOf(runs) != " succeeded" || runs[0].StartedAt.Year() == 1999 {
		t.Errorf("the runs are %+v", runs)
	}
}

// TestLedgerLostReplies: each write whose reply is lost, or that gets lost itself, is settled: one run begins, goes on
// and ends once.
func TestLedgerLostReplies(t *testing.T) {
	t.Parallel()
	times := 5
	if *prove {
		times = 300
	}
	for what, fate := range map[string]dynamodbtest.Fate{
		"reply lost":           {DropReply: true},
		"request lost":         {DropRequest: true},
		"internal error, done": {Status: 500, Code: "InternalServerError", Message: "done nevertheless", After: true},
		"throttled":            {Status: 400, Code: "ProvisionedThroughputExceededException", Message: "too fast"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			table := newTableName()
			p := newProxy(t, sharedServer(t).Direct)
			l, w := ledgerAt(t, table, p.Endpoint, ""), newPlainWorker(t, table)
			decide := func() *atomic.Int32 {
				var met atomic.Int32
				p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
					if r.Operation == "Query" || r.Operation == "GetItem" || met.Load() > 0 {
						return dynamodbtest.Fate{}
					}
					met.Add(1)
					return fate
				})
				return &met
			}
			for i := range times {
				key := fmt.Sprint("k", i)
				for _, end := range []string{"failed", "released", "succeeded"} {
					met := decide()
					g := acquire(t, l, runClaim(table, key, time.Minute))
					renewals := decide()
					for err := renew(t, l, g).Err; err != nil; err = renew(t, l, g).Err {
						if errors.Is(err, driver.ErrLost) {
							t.Fatal(err)
						}
					}
					w.mustNotBegin(t, key)
					ends := decide()
					switch end {
					case "failed":
						fail(t, l, g)
					case "released":
						release(t, l, g.Claim)
					default:
						succeed(t, l, g, "yes")
					}
					if met.Load()+renewals.Load()+ends.Load() != 3 {
						t.Fatal("a request was not disturbed")
					}
				}
				if runs := readRuns(t, l, table+"/"+key); statesOf(runs) != " failed failed succeeded" {
					t.Fatalf("the runs are %+v", runs)
				}
			}
		})
	}
}

// TestLedgerLossy: the suite's cases hold on a network that loses requests and replies.
func TestLedgerLossy(t *testing.T) {
	t.Parallel()
	endpoint, table := startServer(t).Endpoint, newTableName()
	ledgerAt(t, table, endpoint, "") // makes the table
	open := func(ctx context.Context, fate func() drivertest.Fate) (driver.Store, error) {
		client := sdk.New(dynamodbtest.Client(endpoint).Options(), func(o *sdk.Options) {
			o.HTTPClient = &http.Client{
				Transport: &drivertest.Transport{Base: &http.Transport{MaxIdleConnsPerHost: 64}, Fate: fate}}
		})
		return New(ctx, client, table, &Options{Layout: LayoutLedger, LedgerName: suiteLedger})
	}
	storetest.Conform(t, drivertest.Harness{
		Open: func(ctx context.Context) (driver.Store, error) {
			return open(ctx, func() drivertest.Fate { return drivertest.Pass })
		},
		Lossy: open, Prefix: suiteLedger + "/", Slack: 4 * time.Second,
	}, drivertest.Options{Parallel: caseParallelism(), LostReplies: 2, Refusals: 2,
		Match: func(c drivertest.Case) bool { return strings.HasPrefix(c.Name, "ledger-") }})
}

// TestLedgerAbandonStops: a client that takes over from a dead worker may die between its two steps. Nobody begins
// before the second one, the old worker cannot renew after the first, and what it reports before the second counts.
func TestLedgerAbandonStops(t *testing.T) {
	t.Parallel()
	for _, reports := range []bool{false, true} {
		t.Run(fmt.Sprint("reports=", reports), func(t *testing.T) {
			t.Parallel()
			table := newTableName()
			p := newProxy(t, sharedServer(t).Direct)
			l, worker := ledgerAt(t, table, p.Endpoint, ""), ledgerAt(t, table, sharedServer(t).Endpoint, "")
			w := newPlainWorker(t, table)
			g := acquire(t, worker, runClaim(table, "k", 3*time.Second))
			var stopped atomic.Bool
			p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
				if r.Operation == "PutItem" {
					stopped.Store(true)
				}
				return dynamodbtest.Fate{DropRequest: stopped.Load()}
			})
			eventually(t, "a client that takes over", func() bool {
				_, err := l.Acquire(t.Context(), runClaim(table, "k", time.Second))
				return stopped.Load() && err != nil
			})
			w.mustNotBegin(t, "k")
			if err := renew(t, worker, g).Err; lossOf(err) != driver.LossExpired {
				t.Errorf("a renewal after the first step: %v", err)
			}
			if reports {
				g.Since = worker.clock.Clock.Now() // it believes that it is in time
				succeed(t, worker, g, "in time")
				mustRefuseRun(t, worker, runClaim(table, "k", time.Minute), driver.ErrSucceeded)
				return
			}
			next := acquire(t, worker, runClaim(table, "k", time.Minute))
			if next.Attempt != 2 || next.Token <= g.Token {
				t.Errorf("the next run is %+v", next)
			}
			if got := w.rows(t, "k"); got != "1:started 2:failed 3:started" {
				t.Errorf("the rows are %s", got)
			}
		})
	}
}

// TestLedgerAbandonedEnd: a run whose lease has expired ended then, whenever its history is read, and also when its
// end is written.
func TestLedgerAbandonedEnd(t *testing.T) {
	t.Parallel()
	table := newTableName()
	l := ledgerAt(t, table, sharedServer(t).Endpoint, "")
	c := runClaim(table, "k", 3*time.Second)
	acquire(t, l, c)
	var first []driver.Run
	eventually(t, "the run is abandoned", func() bool {
		first = readRuns(t, l, c.Name)
		return first[0].State == driver.RunAbandoned
	})
	if again := readRuns(t, l, c.Name); !reflect.DeepEqual(again, first) {
		t.Errorf("the run was %+v, and is %+v", first, again)
	}
	acquire(t, l, runClaim(table, "k", time.Minute))
	if written := readRuns(t, l, c.Name)[0]; !written.EndedAt.Equal(first[0].EndedAt) {
		t.Errorf("the run ended at %v, and what is written says %v", first[0].EndedAt, written.EndedAt)
	}
}

// TestLedgerLateSuccess: a worker whose run was abandoned cannot end it any more, also before the next run begins. Its
// report is noted, and the rows stay as they are.
func TestLedgerLateSuccess(t *testing.T) {
	t.Parallel()
	table := newTableName()
	worker, l := ledgerAt(t, table, sharedServer(t).Endpoint, ""), ledgerAt(t, table, sharedServer(t).Endpoint, "")
	w := newPlainWorker(t, table)
	for _, key := range []string{"followed", "expired"} {
		g := acquire(t, worker, runClaim(table, key, 3*time.Second))
		eventually(t, "a run that has expired by both estimates of the clock", func() bool {
			return statesOf(readRuns(t, worker, g.Name))+statesOf(readRuns(t, l, g.Name)) == " abandoned abandoned"
		})
		if key == "followed" {
			w.mustNotBegin(t, key)
			fail(t, l, acquire(t, l, runClaim(table, key, time.Minute)))
			w.mustEnd(t, key, w.mustBegin(t, key), "failed")
		}
		before := w.rows(t, key)
		if err := worker.FinishRun(t.Context(), g, succeeded("late")); lossOf(err) != driver.LossExpired {
			t.Errorf("a late report is answered with %v", err)
		}
		if got := w.rows(t, key); key == "followed" && got != before {
			t.Errorf("the rows are %s, and were %s", got, before)
		}
		if r := readRuns(t, l, g.Name)[0]; r.State != driver.RunAbandoned || r.LateReport != driver.RunSucceeded ||
			len(r.Result) > 0 {
			t.Errorf("the run is %+v", r)
		}
		if g := acquire(t, l, runClaim(table, key, time.Minute)); g.Attempt < 2 {
			t.Errorf("the next run is %+v", g)
		}
	}
}

// TestLedgerRenewalsOutOfOrder: a renewal that arrives after a later one does not shorten the lease.
func TestLedgerRenewalsOutOfOrder(t *testing.T) {
	t.Parallel()
	table := newTableName()
	p := newProxy(t, sharedServer(t).Direct)
	l := ledgerAt(t, table, p.Endpoint, "")
	direct := *l.tableClient // the same client with another way to the service
	direct.client = dynamodbtest.Client(sharedServer(t).Endpoint)
	later := &ledger{tableClient: &direct, name: table, runs: map[string]rowRun{}}
	g := acquire(t, l, runClaim(table, "k", 6*time.Second))
	long := g
	long.GrantedTTL = time.Hour
	renewals := 0
	p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
		if renewals > 0 {
			return dynamodbtest.Fate{DropRequest: true} // only the first one is on its way
		}
		if r.Operation == "UpdateItem" {
			renewals++
			if err := renew(t, later, long).Err; err != nil {
				t.Error(err)
			}
		}
		return dynamodbtest.Fate{}
	})
	if err := renew(t, l, g).Err; err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("a renewal after a later one: %v", err)
	}
	h, err := later.readHeartbeat(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Duration(h.expiresAt-later.storeTime().UnixMicro()) * time.Microsecond; left < 50*time.Minute {
		t.Errorf("the lease of an hour ends in %v", left)
	}
	p.Decide(nil)
	if err := renew(t, l, g).Err; err != nil {
		t.Errorf("the next renewal: %v", err)
	}
}

// TestLedgerStartedAge: a plain worker's run without an end stops everybody, unless it began longer ago than the user
// says. What cannot be read is never let through.
func TestLedgerStartedAge(t *testing.T) {
	t.Parallel()
	table := newTableName()
	never := ledgerAt(t, table, sharedServer(t).Endpoint, "")
	aged := ledgerAt(t, table, sharedServer(t).Endpoint, "&started-age=1h")
	w := newPlainWorker(t, table)
	ago := func(d time.Duration, format string) string { return time.Now().Add(-d).UTC().Format(format) }
	inTokyo := time.Now().Add(-2 * time.Hour).In(time.FixedZone("", 9*3600))
	for key, c := range map[string]struct {
		createdAt string
		passes    bool
	}{
		"old":       {ago(2*time.Hour, time.RFC3339), true},
		"old-zone":  {inTokyo.Format("2006-01-02 15:04:05.000-0700"), true},
		"young":     {ago(50*time.Minute, time.RFC3339), false},
		"local":     {ago(2*time.Hour, "2006-01-02T15:04:05.000000"), false},
		"old-local": {ago(14*time.Hour, "2006-01-02T15:04:05.000000"), true},
		"epoch":     {"1700000000", false},
		"blank":     {" ", false},
		"words":     {"yesterday", false},
	} {
		if counter, err := w.start(t.Context(), key, 1, c.createdAt); err != nil || counter != "1" {
			t.Fatalf("%s, %v", counter, err)
		}
		mustRefuseRun(t, never, runClaim(table, key, time.Minute), driver.ErrInProgress)
		if !c.passes {
			mustRefuseRun(t, aged, runClaim(table, key, time.Minute), driver.ErrInProgress)
			continue
		}
		g := acquire(t, aged, runClaim(table, key, time.Minute))
		if got := w.rows(t, key); got != "1:started 2:failed 3:started" || g.Attempt != 2 {
			t.Errorf("%s: the rows are %s, and the grant %+v", key, got, g)
		}
		w.mustNotBegin(t, key)
		w.mustEnd(t, key, 1, "succeeded") // the slow worker, after all
		mustRefuseRun(t, never, runClaim(table, key, time.Minute), driver.ErrInProgress)
		succeed(t, aged, g, "")
		if statesOf(readRuns(t, never, g.Name)) != " succeeded succeeded" {
			t.Errorf("the history is %+v", readRuns(t, never, g.Name))
		}
	}
	// A slow worker that looks for the newest row before it writes the end ends the run in progress.
	g := acquire(t, aged, runClaim(table, "interrupted", time.Minute))
	w.mustEnd(t, "interrupted", 1, "failed")
	if err := renew(t, aged, g).Err; lossOf(err) != driver.LossTaken {
		t.Errorf("a renewal after another worker has ended the run: %v", err)
	}
	if err := aged.FinishRun(t.Context(), g, succeeded("")); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a report after another worker has ended the run: %v", err)
	}
}

// TestLedgerForgetUnanswered: an operator who repeats a request to forget a key, because the first one had no reply, is
// not told that a run is in progress: it is his own.
func TestLedgerForgetUnanswered(t *testing.T) {
	t.Parallel()
	table := newTableName()
	p := newProxy(t, sharedServer(t).Direct)
	l, other := ledgerAt(t, table, p.Endpoint, ""), ledgerAt(t, table, sharedServer(t).Endpoint, "")
	name := table + "/k"
	fail(t, other, acquire(t, other, runClaim(table, "k", time.Minute)))
	var started atomic.Bool
	p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
		if r.Operation == "UpdateItem" {
			started.Store(true)
			return dynamodbtest.Fate{DropReply: true}
		}
		return dynamodbtest.Fate{DropRequest: started.Load()} // and so nothing resolves the outcome
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // its first request was sent by then
	defer cancel()
	if err := l.ForgetRuns(ctx, name); err == nil || !started.Load() {
		t.Fatalf("without a reply: %v", err)
	}
	if err := other.ForgetRuns(t.Context(), name); err != nil {
		t.Errorf("repeated: %v", err)
	}
	if runs := readRuns(t, other, name); len(runs) > 0 {
		t.Errorf("the runs are %+v", runs)
	}
}

// TestLedgerForget: a forgotten key begins again for everybody, and so does one of which few runs are kept. The starts
// stay, so that a plain worker that has read the key long ago does not begin next to another run.
func TestLedgerForget(t *testing.T) {
	t.Parallel()
	table := newTableName()
	l, w := ledgerAt(t, table, sharedServer(t).Endpoint, ""), newPlainWorker(t, table)
	name := table + "/k"
	fail(t, l, acquire(t, l, runClaim(table, "k", time.Minute)))
	old := acquire(t, l, runClaim(table, "k", time.Minute))
	succeed(t, l, old, "secret")
	for range 2 {
		if err := l.ForgetRuns(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.rows(t, "k"); got != "1:started 3:started 5:started 6:failed" {
		t.Errorf("the rows are %s", got)
	}
	if runs := readRuns(t, l, name); len(runs) > 0 {
		t.Errorf("the runs are %+v", runs)
	}
	g := acquire(t, l, runClaim(table, "k", time.Minute))
	if g.Attempt != 1 || g.Token <= old.Token {
		t.Errorf("the grant is %+v", g)
	}
	for _, sequence := range []int64{1, 3, 5, 7} { // wherever a plain worker has stopped
		if counter, err := w.start(t.Context(), "k", sequence, "1999-01-01T00:00:00Z"); err != nil || counter == "1" {
			t.Errorf("a start at %d gets %s (%v)", sequence, counter, err)
		}
	}
	succeed(t, l, g, "")
	if statesOf(readRuns(t, l, name)) != " succeeded" {
		t.Errorf("the runs are %+v", readRuns(t, l, name))
	}
	if err := l.ForgetRuns(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	w.mustEnd(t, "k", w.mustBegin(t, "k"), "failed")
	if runs := readRuns(t, l, name); len(runs) != 1 || runs[0].Attempt != 1 {
		t.Errorf("after a plain worker has run a forgotten key, the runs are %+v", runs)
	}
	for i := range 12 {
		c := runClaim(table, "few", time.Minute)
		c.Run.KeepRuns = 2
		if g := acquire(t, l, c); g.Attempt != int64(i)+1 {
			t.Errorf("the grant is %+v", g)
		} else {
			fail(t, l, g)
		}
	}
	const want = "1:started 3:started 5:started 7:started 9:started 11:started 13:started 15:started 17:started 19:started " +
		"20:failed " +
		"21:started 22:failed 23:started 24:failed"
	if got := w.rows(t, "few"); got != want {
		t.Errorf("the rows are %s", got)
	}
}

// TestLedgerOperator: an operator can end a run by force, also that of a plain worker, which cannot be told. A worker
// of ours can, and learns it by its next renewal.
func TestLedgerOperator(t *testing.T) {
	t.Parallel()
	table := newTableName()
	l, other, w := ledgerAt(t, table, sharedServer(t).Endpoint, ""), ledgerAt(t, table, sharedServer(t).Endpoint, ""),
		newPlainWorker(t, table)
	w.mustBegin(t, "plain")
	ref := holdersOf(t, l, table+"/plain")[0].Ref
	if err := l.Break(t.Context(), table+"/plain", ref, driver.Break{Mode: driver.BreakGraceful}); !errors.Is(err, driver.ErrUnsupported) {
		t.Error(err)
	}
	if err := l.Break(t.Context(), table+"/plain", ref, driver.Break{Mode: driver.BreakForce}); err != nil {
		t.Error(err)
	}
	fail(t, l, acquire(t, l, runClaim(table, "plain", time.Minute)))

	for mode, want := range map[driver.BreakMode]driver.LossCause{driver.BreakGraceful: driver.LossBroken,
		driver.BreakForce: driver.LossBroken, driver.BreakRequestRelease: ""} {
		key := fmt.Sprint("ours", mode)
		g := acquire(t, l, runClaim(table, key, time.Minute))
		if err := other.Break(t.Context(), g.Name, "1.nobody", driver.Break{Mode: mode}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("breaking a run that is not there: %v", err)
		}
		if err := other.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: mode}); err != nil {
			t.Fatal(err)
		}
		r := renew(t, l, g)
		if lossOf(r.Err) != want || r.ReleaseRequested != (mode == driver.BreakRequestRelease) {
			t.Errorf("mode %d: the renewal is %+v", mode, r)
		}
		err := l.FinishRun(t.Context(), g, succeeded(""))
		if mode == driver.BreakForce && lossOf(err) != driver.LossBroken || mode != driver.BreakForce && err != nil {
			t.Errorf("mode %d: the report is answered with %v", mode, err)
		}
	}
	if err := l.Break(t.Context(), table+"/plain", "nonsense", driver.Break{Mode: driver.BreakForce}); !errors.Is(err, driver.ErrInvalid) {
		t.Error(err)
	}
}

// TestLedgerRequests: a run costs one read and two writes, and a key that has succeeded one read.
func TestLedgerRequests(t *testing.T) {
	t.Parallel()
	table := newTableName()
	p := newProxy(t, sharedServer(t).Direct)
	l := ledgerAt(t, table, p.Endpoint, "")
	p.Counts()
	expect := func(what string, want map[string]int) {
		t.Helper()
		if got := p.Counts(); !maps.Equal(got, want) {
			t.Errorf("%s takes %v, want %v", what, got, want)
		}
	}
	g := acquire(t, l, runClaim(table, "k", time.Minute))
	expect("a begin", map[string]int{"Query": 1, "UpdateItem": 1})
	mustRefuseRun(t, l, runClaim(table, "k", time.Minute), driver.ErrInProgress)
	expect("a begin while a run is in progress", map[string]int{"Query": 1})
	if err := renew(t, l, g).Err; err != nil {
		t.Fatal(err)
	}
	expect("a renewal", map[string]int{"GetItem": 1, "UpdateItem": 1})
	succeed(t, l, g, "")
	expect("a success", map[string]int{"PutItem": 1})
	mustRefuseRun(t, l, runClaim(table, "k", time.Minute), driver.ErrSucceeded)
	expect("a begin after a success", map[string]int{"Query": 1})
	if len(l.runs) != 0 {
		t.Errorf("%d runs are remembered", len(l.runs))
	}
}

// TestLedgerForgetsOldRuns: a client does not remember runs that nobody has ended, for as long as it lives. One that
// was renewed can still end.
func TestLedgerForgetsOldRuns(t *testing.T) {
	t.Parallel()
	table := newTableName()
	l := ledgerAt(t, table, sharedServer(t).Direct, "")
	renewed := acquire(t, l, runClaim(table, "renewed", time.Minute))
	l.mu.Lock()
	old := l.runs[renewed.ID]
	old.ExpiresAt = l.clock.TokenFloor() - 1
	l.runs[renewed.ID] = old
	l.mu.Unlock()
	next := acquire(t, l, runClaim(table, "next", time.Minute))
	if _, ok := l.runs[next.ID]; len(l.runs) != 1 || !ok {
		t.Errorf("%d runs are remembered", len(l.runs))
	}
	succeed(t, l, renewed, "")
	succeed(t, l, next, "")
}

// TestLedgerLastRuns: the last runs are the same as those of the whole history, also where plain workers, whose rows do
// not say which attempt they are, have run the key.
func TestLedgerLastRuns(t *testing.T) {
	t.Parallel()
	table := newTableName()
	plain := newPlainWorker(t, table)
	l := ledgerAt(t, table, sharedServer(t).Endpoint, "")
	for _, byPlain := range []bool{true, true, false, true, false, false, true, true, true, false, true, true} {
		if !byPlain {
			fail(t, l, acquire(t, l, runClaim(table, "k", time.Minute)))
			continue
		}
		sequence, err := plain.begin(t.Context(), "k")
		if err == nil {
			err = plain.end(t.Context(), "k", sequence, "failed")
		}
		if err != nil || sequence == 0 {
			t.Fatal(sequence, err)
		}
	}
	check := func() {
		t.Helper()
		all := readRuns(t, l, table+"/k")
		for last := range len(all) + 2 {
			h, err := l.ReadRuns(t.Context(), table+"/k", last)
			if err != nil || len(h.Runs) < min(last, len(all)) || len(h.Runs) > len(all) {
				t.Fatalf("where the last %d of %d runs are needed, there are %d, %v", last, len(all), len(h.Runs), err)
			}
			if !reflect.DeepEqual(h.Runs, all[len(all)-len(h.Runs):]) {
				t.Errorf("the last %d runs are\n%+v, and all runs are\n%+v", last, h.Runs, all)
			}
		}
	}
	check()
	acquire(t, l, runClaim(table, "k", time.Minute))
	check()
}

// TestLedgerTables: a table with another key is refused with what is needed, and a row that cannot be understood makes
// its key, and no other, corrupt.
func TestLedgerTables(t *testing.T) {
	t.Parallel()
	endpoint := sharedServer(t).Endpoint
	client := dynamodbtest.Client(endpoint)
	text, number := types.ScalarAttributeTypeS, types.ScalarAttributeTypeN
	for _, c := range []struct {
		what             string
		hash, sort       string
		hashType, sortBy types.ScalarAttributeType
	}{
		{"no sort key", "partition_key", "", text, ""},
		{"another sort key", "partition_key", "number", text, number},
		{"a sort key that is a text", "partition_key", "sequence", text, text},
		{"a partition key that is a number", "partition_key", "sequence", number, number},
		{"another partition key", "id", "sequence", text, number},
	} {
		table := newTableName()
		in := &sdk.CreateTableInput{TableName: &table, BillingMode: types.BillingModePayPerRequest,
			AttributeDefinitions: []types.AttributeDefinition{{AttributeName: &c.hash, AttributeType: c.hashType}},
			KeySchema:            []types.KeySchemaElement{{AttributeName: &c.hash, KeyType: types.KeyTypeHash}}}
		if c.sort != "" {
			in.AttributeDefinitions = append(in.AttributeDefinitions,
				types.AttributeDefinition{AttributeName: &c.sort, AttributeType: c.sortBy})
			in.KeySchema = append(in.KeySchema,
				types.KeySchemaElement{AttributeName: &c.sort, KeyType: types.KeyTypeRange})
		}
		if _, err := client.CreateTable(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		isNew := newProxy(t, endpoint) // whose first reply is that of a service which has just begun to make the table
		var replies atomic.Int64
		isNew.Decide(func(dynamodbtest.Request) dynamodbtest.Fate {
			if replies.Add(1) == 1 {
				return dynamodbtest.Fate{Status: http.StatusBadRequest, Code: "ResourceNotFoundException"}
			}
			return dynamodbtest.Fate{}
		})
		for _, at := range []string{endpoint, isNew.Endpoint} {
			_, err := driver.Open(t.Context(), urlOf(table, at, "&layout=ledger"))
			if !errors.Is(err, driver.ErrInvalid) ||
				!strings.Contains(err.Error(), "HASH partition_key (S) and RANGE sequence (N)") {
				t.Errorf("%s: %v", c.what, err)
			}
			t.Log(err)
		}
	}
	for option, words := range map[string]string{
		"&layout=ledger&prefix=p": "prefix", "&layout=ledger&started-age=1s": "1m or more", "&started-age=1h": "layout ledger",
		"&ledger-name=x": "layout ledger", "&layout=ledger&partition-key=sequence": "sequence", "&layout=ledger&ledger-name=a/b": "slash",
	} {
		_, err := driver.Open(t.Context(), urlOf(newTableName(), endpoint, option))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", option, err)
		}
	}

	table := newTableName()
	l := ledgerAt(t, table, endpoint, "")
	row := func(key string, more item) {
		it := item{"partition_key": textValue(key), "sequence": numberValue(1), "exec_status": textValue("failed"),
			"atomic_counter": numberValue(1), "created_at": textValue("1999-01-01T00:00:00Z")}
		maps.Copy(it, more)
		putItem(t, client, table, it)
	}
	corrupt := map[string]item{
		"text":   {"atomic_counter": textValue("one")},
		"status": {"exec_status": textValue("STARTED")},
		"half":   {"sequence": &types.AttributeValueMemberN{Value: "1.5"}},
		"run":    {idAttribute: textValue("x"), beforeAttribute: numberValue(0), runAttribute: textValue("{")},
	}
	for key, more := range corrupt {
		row(key, more)
	}
	row("fine", nil)
	for key := range corrupt {
		_, err := l.Acquire(t.Context(), runClaim(table, key, time.Minute))
		if !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), fmt.Sprintf("the key %q", key)) {
			t.Errorf("%s: %v", key, err)
		}
		t.Log(err)
	}
	listed, broken := 0, 0
	for h, err := range l.ListRuns(t.Context(), table+"/") {
		listed++
		if errors.Is(err, driver.ErrCorrupt) && corrupt[strings.TrimPrefix(h.Key, table+"/")] != nil {
			broken++
		}
	}
	if listed != 5 || broken != 4 {
		t.Errorf("%d keys are listed, %d of them as corrupt", listed, broken)
	}
	for _, err := range l.ListRuns(t.Context(), "other/") {
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "ledger-name=other") {
			t.Errorf("listing another ledger: %v", err)
		}
		listed++
	}
	if listed != 6 {
		t.Error("listing another ledger says nothing")
	}
	acquire(t, l, runClaim(table, "fine", time.Minute))
	for name, words := range map[string]string{
		"other/k": "ledger-name=other", table + "/": "empty", table + "/k\x1f": "U+001F"} {
		c := runClaim(table, "k", time.Minute)
		c.Name = name
		if _, err := l.Acquire(t.Context(), c); !errors.Is(err, driver.ErrInvalid) ||
			!strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestLedgerStoreHasNoLocks: a store with this layout refuses all that locks need, and says what to use.
func TestLedgerStoreHasNoLocks(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, urlOf(newTableName(), sharedServer(t).Endpoint, "&layout=ledger"))
	c := mutexClaim("m", time.Minute)
	_, acquired := s.Acquire(t.Context(), c)
	_, inspected := s.Inspect(t.Context(), "m")
	errs := []error{acquired, inspected, s.Release(t.Context(), c, ""),
		s.Break(t.Context(), "m", "x", driver.Break{Mode: driver.BreakForce}),
		renew(t, s, driver.Grant{Claim: c}).Err}
	for _, err := range s.List(t.Context(), "") {
		errs = append(errs, err)
	}
	for _, err := range errs {
		if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "Client.Ledger") {
			t.Error(err)
		}
	}
	if len(errs) != 6 || len(s.Info().Kinds) != 0 {
		t.Errorf("%d errors, and the kinds %v", len(errs), s.Info().Kinds)
	}
}

// TestLedgerListPages: a listing that needs several pages has each key once.
func TestLedgerListPages(t *testing.T) {
	t.Parallel()
	table := newTableName()
	l := ledgerAt(t, table, sharedServer(t).Endpoint, "")
	const keys = 20
	result := strings.Repeat("x", driver.MaxRunResult)
	for i := range keys {
		fail(t, l, acquire(t, l, runClaim(table, fmt.Sprint("k", i), time.Minute)))
		succeed(t, l, acquire(t, l, runClaim(table, fmt.Sprint("k", i), time.Minute)), result)
	}
	seen := map[string]int{}
	for h, err := range l.ListRuns(t.Context(), "") {
		if err != nil || len(h.Runs) != 1 || h.Runs[0].Attempt != 2 || len(h.Runs[0].Result) != len(result) {
			t.Fatalf("%s: %d runs, %v", h.Key, len(h.Runs), err)
		}
		seen[h.Key]++
	}
	if len(seen) != keys {
		t.Errorf("%d keys are listed", len(seen))
	}
}

// TestLedgerWithdrawsLateStart: a start that may still be on its way when its claim is withdrawn begins no run,
// whenever it arrives, and the key is as it was before.
func TestLedgerWithdrawsLateStart(t *testing.T) {
	for _, before := range []string{"", "failed", "plain"} {
		for _, arrives := range []string{"before", "after", "never"} {
			t.Run(before+" "+arrives, func(t *testing.T) {
				t.Parallel()
				table := newTableName()
				l := ledgerAt(t, table, sharedServer(t).Endpoint, "")
				w, key := newPlainWorker(t, table), "k"
				switch before {
				case "failed":
					fail(t, l, acquire(t, l, runClaim(table, key, time.Minute)))
				case "plain":
					w.mustEnd(t, key, w.mustBegin(t, key), "failed")
				}
				was := statesOf(readRuns(t, l, table+"/"+key))
				st, err := l.readState(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				c := runClaim(table, key, time.Minute)
				run := rowRun{ID: c.ID, Attempt: st.last.Attempt + 1, Token: st.maxToken + 1, MaxToken: st.maxToken + 1,
					TTL: c.TTL.Milliseconds(), ExpiresAt: l.latestEnd(c.TTL), First: st.first}
				sequence := max(st.newest.sequence+1, firstSequence)
				l.rememberStart(unsureStart{sequence, run})
				if arrives == "before" {
					if _, err := l.sendStart(t.Context(), key, sequence, &run); err != nil {
						t.Fatal(err)
					}
				}
				c.Withdrawn = true
				if err := l.Release(t.Context(), c, ""); err != nil && !errors.Is(err, driver.ErrLost) {
					t.Fatal(err)
				}
				if arrives == "after" {
					if _, err := l.sendStart(t.Context(), key, sequence, &run); !errors.Is(err, errRefused) {
						t.Errorf("a start that came late: %v", err)
					}
				}
				if now := statesOf(readRuns(t, l, table+"/"+key)); now != was {
					t.Errorf("the history was%s, and is%s", was, now)
				}
				if g := acquire(t, l, runClaim(table, key, time.Minute)); g.Attempt != st.last.Attempt+1 {
					t.Errorf("the next run is attempt %d", g.Attempt)
				}
				if n := len(l.unsure); n != 0 {
					t.Errorf("%d starts are remembered", n)
				}
			})
		}
	}
}

// TestLedgerUnconfirmedStart: after a start without a reply that took effect, a refusal of the renewal that confirms
// it is not the outcome: the run may be there, so the client withdraws it.
func TestLedgerUnconfirmedStart(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"AccessDeniedException", "ResourceNotFoundException"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			table := newTableName()
			p := newProxy(t, sharedServer(t).Direct)
			l := ledgerAt(t, table, p.Endpoint, "")
			updates := 0
			p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
				if r.Operation != "UpdateItem" {
					return dynamodbtest.Fate{}
				}
				if updates++; updates == 1 {
					return dynamodbtest.Fate{DropReply: true}
				}
				return dynamodbtest.Fate{Status: 400, Code: code, Message: "not now"}
			})
			c := runClaim(table, "k", time.Minute)
			if _, err := l.Acquire(t.Context(), c); !errors.Is(err, driver.ErrUncertain) || updates != 2 {
				t.Errorf("after %d updates: %v", updates, err)
			}
			p.Decide(func(dynamodbtest.Request) dynamodbtest.Fate { return dynamodbtest.Fate{} })
			if runs := readRuns(t, l, table+"/k"); statesOf(runs) != " started" {
				t.Fatalf("the runs are %+v", runs)
			}
			c.Withdrawn = true
			if err := l.Release(t.Context(), c, ""); err != nil {
				t.Errorf("withdrawing the run: %v", err)
			}
			if runs := readRuns(t, l, table+"/k"); len(runs) != 0 {
				t.Errorf("the runs are %+v", runs)
			}
		})
	}
}

// TestLedgerWithdrawalWithoutReply: a withdrawal whose reply was lost has been made, also if somebody else has begun
// the next run before it is sent again.
func TestLedgerWithdrawalWithoutReply(t *testing.T) {
	t.Parallel()
	for _, before := range []int{0, 1} {
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			t.Parallel()
			table := newTableName()
			p := newProxy(t, sharedServer(t).Direct)
			l, other := ledgerAt(t, table, p.Endpoint, ""), ledgerAt(t, table, sharedServer(t).Endpoint, "")
			for range before {
				fail(t, l, acquire(t, l, runClaim(table, "k", time.Minute)))
			}
			c := runClaim(table, "k", time.Minute)
			acquire(t, l, c)
			lost, begun := false, false
			p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
				switch {
				case r.Operation == "PutItem" && !lost:
					lost = true
					return dynamodbtest.Fate{DropReply: true}
				case lost && !begun:
					begun = true
					acquire(t, other, runClaim(table, "k", time.Minute))
				}
				return dynamodbtest.Fate{}
			})
			c.Withdrawn = true
			if err := l.Release(t.Context(), c, ""); err != nil || !begun {
				t.Errorf("withdrawing the run: %v (another has begun: %t)", err, begun)
			}
			want := strings.Repeat(" failed", before) + " started"
			if runs := readRuns(t, other, table+"/k"); statesOf(runs) != want {
				t.Errorf("the runs are%s, want%s", statesOf(runs), want)
			}
		})
	}
}
