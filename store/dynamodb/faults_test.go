package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

var layouts = []string{"record", "awslock"}

// writes has the next n writes meet that fate.
func writes(p *dynamodbtest.Proxy, n int, f dynamodbtest.Fate) (met *atomic.Int32) {
	met = &atomic.Int32{}
	p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
		if r.Operation == "GetItem" || int(met.Load()) >= n {
			return dynamodbtest.Fate{}
		}
		met.Add(1)
		return f
	})
	return met
}

// TestLostReplies: a write whose reply is lost, or replaced by an error, is settled by looking: an acquire is granted once and
// counts from its first request, a renewal keeps the lock and its token, a release has released.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	times := 15
	if *prove {
		times = 1000
	}
	for what, fate := range map[string]dynamodbtest.Fate{
		"reply lost":                 {DropReply: true},
		"request lost":               {DropRequest: true},
		"internal error, done":       {Status: 500, Code: "InternalServerError", Message: "done all the same", After: true},
		"internal error, not done":   {Status: 500, Code: "InternalServerError", Message: "not done"},
		"throttled":                  {Status: 400, Code: "ProvisionedThroughputExceededException", Message: "too fast"},
		"request rate too high, 503": {Status: 503, Code: "ServiceUnavailable", Message: "later"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, layout := range layouts {
				p, table := proxy(t, server(t).Direct), tableName()
				s, witness := open(t, storeURL(table, p.Endpoint, "&layout="+layout)), open(t, storeURL(table, server(t).Endpoint, "&layout="+layout))
				for i := range times {
					c := mutex("m", time.Minute)
					if i%2 == 0 {
						c = waiting(c)
					}
					met := writes(p, 1, fate)
					g := acquire(t, s, c)
					if h := holders(t, witness, "m"); len(h) != 1 || h[0].Token != g.Token || h[0].Ref != g.Ref || met.Load() != 1 {
						t.Fatalf("granted %d, and shown is %+v", g.Token, h)
					}
					met = writes(p, 1, fate)
					for err := renew(t, s, g); err != nil; err = renew(t, s, g) {
						if errors.Is(err, driver.ErrLost) {
							t.Fatal(err)
						}
					}
					if h := holders(t, witness, "m"); len(h) != 1 || h[0].Token != g.Token || met.Load() != 1 {
						t.Fatalf("renewed %d, and shown is %+v", g.Token, h)
					}
					met = writes(p, 1, fate)
					release(t, s, c)
					if h := holders(t, witness, "m"); len(h) != 0 || met.Load() != 1 {
						t.Fatalf("released, and shown is %+v", h)
					}
				}
				t.Logf("%s, layout %s: %d acquires, renewals and releases settled", what, layout, times)
			}
		})
	}
}

// TestCancel: claims that are given up at random points, and cleaned up, leave nothing behind a second later.
func TestCancel(t *testing.T) {
	t.Parallel()
	n := int64(200)
	if *prove {
		n = 10000
	}
	table := tableName()
	s := open(t, storeURL(table, server(t).Endpoint, ""))
	var claims, cancels, after atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for cancels.Load() < n && !t.Failed() {
				claims.Add(1)
				c := waiting(mutex(fmt.Sprint("m", i%4), 30*time.Second))
				c.Fair = rand.N(2) == 0
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(30*time.Millisecond))
				_, err := s.Acquire(ctx, c)
				cancel()
				if err != nil {
					cancels.Add(1)
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					if stands(t, s, c) {
						after.Add(1)
					}
				}
				if rerr := s.Release(t.Context(), c, ""); rerr != nil && (err == nil || !errors.Is(rerr, driver.ErrLost)) {
					t.Errorf("release: %v (acquire: %v)", rerr, err)
				}
			}
		})
	}
	wg.Wait()
	time.Sleep(time.Second)
	for l, err := range s.List(t.Context(), "") {
		t.Errorf("an orphan: %+v %v", l, err)
	}
	t.Logf("%d claims, %d were cancelled, %d of them after the effect; no orphan a second later", claims.Load(), cancels.Load(), after.Load())
	if after.Load() == 0 || *prove && after.Load() < cancels.Load()/5 {
		t.Errorf("only %d of %d cancels fell after the effect: the test proves little", after.Load(), cancels.Load())
	}
}

// stands tells whether a claim stands, granted or in line.
func stands(t *testing.T, s driver.Store, c driver.Claim) bool {
	t.Helper()
	l, err := s.Inspect(t.Context(), c.Name)
	if err != nil {
		t.Error(err)
	}
	return slices.ContainsFunc(append(l.Holders, l.Waiters...), func(s driver.Standing) bool { return s.Ref == c.ID })
}

// TestCron: a process that comes once, and has watched nothing, replaces a dead holder when its TTL and three seconds have
// passed, and never before the TTL has; whatever part of a second it is, and though its clock is an hour off.
func TestCron(t *testing.T) {
	t.Parallel()
	table := tableName()
	const ttl = 2 * time.Second
	clock := open(t, storeURL(table, server(t).Endpoint, "")).Info().Clock
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 97 * time.Millisecond)
			name := fmt.Sprint("job", i)
			dead := open(t, storeURL(table, server(t).Endpoint, ""))
			g := acquire(t, dead, mutex(name, ttl))
			comes := func() error {
				s, err := New(t.Context(), dynamodbtest.Client(server(t).Endpoint), &Options{Table: table, Clock: apart(time.Duration(i-5) * time.Hour / 5)})
				if err != nil {
					t.Error(err)
					return err
				}
				defer s.Close()
				_, err = s.Acquire(t.Context(), mutex(name, ttl))
				return err
			}
			if i%2 == 0 {
				time.Sleep(ttl + 3*time.Second - clock.Since(g.Since))
				if err := comes(); err != nil {
					t.Errorf("%v after the TTL of a dead holder: %v", clock.Since(g.Since)-ttl, err)
				}
				return
			}
			for comes() != nil {
				if clock.Since(g.Since) > ttl+4*time.Second {
					t.Errorf("a dead holder stands %v after its TTL", clock.Since(g.Since)-ttl)
					return
				}
			}
			after := clock.Since(g.Since) - ttl
			t.Logf("a dead holder was replaced %v after its TTL", after.Round(time.Millisecond))
			if after < 0 {
				t.Errorf("a holder was replaced %v before its TTL was over", -after)
			}
		})
	}
	wg.Wait()
}

// TestClockOff: a client whose wall clock is an hour off, either way, works: its requests are signed again by the service's
// clock, by which everything is judged.
func TestClockOff(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			table, client := tableName(), dynamodbtest.Client(server(t).Endpoint)
			p := proxy(t, server(t).Direct)
			p.Shift(off) // to this test it is all others who are off
			// Two of ours whose own clocks are an hour apart, too.
			one := open(t, storeURL(table, p.Endpoint, ""))
			two, err := New(t.Context(), dynamodbtest.Client(p.Endpoint), &Options{Table: table, Clock: apart(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			defer two.Close()
			g := acquire(t, one, mutex("m", 4*time.Second))
			if _, err := two.Acquire(t.Context(), mutex("m", time.Minute)); !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
			next := acquire(t, two, waiting(mutex("m", time.Minute)))
			after := one.Info().Clock.Since(g.Since) - g.TTL
			t.Logf("a dead holder was replaced %v after its TTL", after.Round(time.Millisecond))
			if after < 0 || after > 4*time.Second || next.Token <= g.Token {
				t.Errorf("replaced %v after its TTL, token %d after %d", after, next.Token, g.Token)
			}
			release(t, two, next.Claim)

			now := time.Now().Add(off).Unix()
			put(t, client, table, item{"primary_id": text("stands"), "expired_at": n(now + 60)})
			if _, err := one.Acquire(t.Context(), mutex("stands", time.Minute)); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("beside a plain item: %v", err)
			}
			put(t, client, table, item{"primary_id": text("over"), "expired_at": n(now - 60)})
			acquire(t, two, mutex("over", time.Minute))
		})
	}
}

// TestRefusals: what the service refuses for good is said at once, and says what to do; a secret is never shown.
func TestRefusals(t *testing.T) {
	t.Parallel()
	table := tableName()
	p := proxy(t, server(t).Direct)
	endpoint := url.QueryEscape(p.Endpoint)
	s := open(t, storeURL(table, p.Endpoint, ""))
	sorted := tableName()
	if _, err := dynamodbtest.Client(server(t).Endpoint).CreateTable(t.Context(), &sdk.CreateTableInput{
		TableName: &sorted, BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: new("primary_id"), AttributeType: types.ScalarAttributeTypeS}, {AttributeName: new("n"), AttributeType: types.ScalarAttributeTypeN}},
		KeySchema: []types.KeySchemaElement{{AttributeName: new("primary_id"), KeyType: types.KeyTypeHash}, {AttributeName: new("n"), KeyType: types.KeyTypeRange}},
	}); err != nil {
		t.Fatal(err)
	}
	check := func(err, is error, words ...string) {
		t.Helper()
		if !errors.Is(err, is) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want %v", err, is)
			return
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: does not name %s", err, w)
			}
		}
		t.Log(err)
	}
	for raw, words := range map[string][]string{
		"dynamodb://no-such-table?region=eu-central-1&endpoint=" + endpoint:                      {"no-such-table", "create=true", "region"},
		"dynamodb://" + table + "?region=eu-central-1&partition=other&endpoint=" + endpoint:      {"primary_id (S)", "other"},
		"dynamodb://" + sorted + "?region=eu-central-1&create=true&endpoint=" + endpoint:         {"RANGE n (N)", "primary_id"},
		"dynamodb://" + table + "?region=eu-central-1&partition=expired_at&endpoint=" + endpoint: {"expired_at"},
		"dynamodb://" + table + "?region=eu-central-1&endpoint=nowhere":                          {"https://"},
		"dynamodb://AKIA:hunter2@" + table + "?region=eu-central-1":                              {"AWS_ACCESS_KEY_ID"},
		"dynamodb://?region=eu-central-1":                                                        {"dynamodb://table"},
		"dynamodb://" + table + "?region=eu-central-1&nope=1":                                    {"nope", "endpoint"},
		"dynamodb://" + table + "?create=maybe":                                                  {"create"},
	} {
		_, err := driver.Open(t.Context(), raw)
		check(err, driver.ErrInvalid, words...)
	}

	refuse := func(code, message string) {
		p.Decide(func(dynamodbtest.Request) dynamodbtest.Fate {
			return dynamodbtest.Fate{Status: 400, Code: code, Message: message}
		})
	}
	refuse("AccessDeniedException", "User: arn:aws:iam::1:user/x is not authorized to perform: dynamodb:UpdateItem")
	from := time.Now()
	_, err := s.Acquire(t.Context(), waiting(mutex("m", time.Minute)))
	check(err, driver.ErrDenied, "dynamodb:UpdateItem", table)
	refuse("ExpiredTokenException", "The security token included in the request is expired")
	_, err = s.Acquire(t.Context(), waiting(mutex("m", time.Minute)))
	check(err, driver.ErrDenied, "ExpiredToken")
	refuse("ResourceNotFoundException", "Requested resource not found")
	_, err = s.Acquire(t.Context(), waiting(mutex("m", time.Minute)))
	check(err, driver.ErrInvalid, table, "region")
	if took := time.Since(from); took > 5*time.Second {
		t.Errorf("what is final was asked for %v", took)
	}

	// Throttled for a while: backed off, and then let in.
	var asked atomic.Int32
	until := time.Now().Add(time.Second)
	p.Decide(func(dynamodbtest.Request) dynamodbtest.Fate {
		if time.Now().After(until) {
			return dynamodbtest.Fate{}
		}
		asked.Add(1)
		return dynamodbtest.Fate{Status: 400, Code: "ThrottlingException", Message: "Rate exceeded"}
	})
	g := acquire(t, s, mutex("m", time.Minute))
	t.Logf("throttled for a second, it asked %d times", asked.Load())
	if asked.Load() > 60 {
		t.Errorf("throttled for a second, it asked %d times", asked.Load())
	}
	release(t, s, g.Claim)
}

// TestTooLarge: an item that would be larger than DynamoDB takes is refused before and by the service, and nothing changes.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	table, client := tableName(), dynamodbtest.Client(server(t).Endpoint)
	s := open(t, storeURL(table, server(t).Endpoint, ""))
	put(t, client, table, item{"primary_id": text("m"), "expired_at": n(1), "ballast": text(strings.Repeat("x", 409000))})
	c := mutex("m", time.Minute)
	c.Meta = strings.Repeat("m", s.Info().MaxMeta)
	if _, err := s.Acquire(t.Context(), c); !errors.Is(err, driver.ErrQueueFull) {
		t.Errorf("with an item of others that is nearly full: %v", err)
	}
	rows, err := NewTable(t.Context(), client, &Options{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	row := record.Row{Name: "r", Data: make([]byte, maxItem+1)}
	if _, err := rows.Swap(t.Context(), row); !errors.Is(err, driver.ErrQueueFull) {
		t.Errorf("a record of %d bytes: %v", len(row.Data), err)
	}
	row.Data = row.Data[1:]
	if row, err = rows.Swap(t.Context(), row); err != nil {
		t.Errorf("a record of %d bytes: %v", len(row.Data), err)
	}
	if got, err := rows.Load(t.Context(), "r"); err != nil || len(got.Data) != maxItem || got.Version != row.Version {
		t.Errorf("%d bytes came back, version %s: %v", len(got.Data), got.Version, err)
	}
	if err := rows.Delete(t.Context(), row); err != nil {
		t.Error(err)
	}
	if err := rows.Delete(t.Context(), row); err != nil {
		t.Error("deleting what is not there:", err)
	}
	for l, err := range s.List(t.Context(), "") {
		t.Errorf("listed: %+v %v", l, err)
	}
}

// TestLateTake: requests of a claim that was given up, perhaps twice, and released, which arrive only then, are refused.
func TestLateTake(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		for i, state := range []string{"absent", "idle", "held", "absent", "idle", "held"} {
			takes := 1 + i/3
			t.Run(fmt.Sprintf("%s %s, %d takes", layout, state, takes), func(t *testing.T) {
				t.Parallel()
				table, p := tableName(), proxy(t, server(t).Direct)
				s, other := open(t, storeURL(table, p.Endpoint, "&layout="+layout)), open(t, storeURL(table, server(t).Endpoint, "&layout="+layout))
				holder := mutex("m", time.Minute)
				if state != "absent" {
					acquire(t, other, holder)
				}
				if state == "idle" {
					release(t, other, holder)
				}
				late := writes(p, takes, dynamodbtest.Fate{Delay: 1500 * time.Millisecond})
				c := mutex("m", time.Minute)
				for range takes {
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					if _, err := s.Acquire(ctx, c); err == nil {
						t.Fatal("granted in spite of the delay")
					}
					cancel()
				}
				if n := int(late.Load()); n != takes {
					t.Fatalf("%d takes are under way, not %d", n, takes)
				}
				if err := s.Release(t.Context(), c, ""); err != nil && !errors.Is(err, driver.ErrLost) {
					t.Fatal(err)
				}
				if state == "held" {
					release(t, other, holder)
				}
				time.Sleep(2 * time.Second)
				if h := holders(t, other, "m"); len(h) != 0 {
					t.Errorf("a claim that was released holds the lock: %+v", h)
				}
				acquire(t, other, mutex("m", time.Minute))
			})
		}
	}
}
