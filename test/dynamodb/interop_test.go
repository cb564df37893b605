// Package dynamodb makes Holdfast and other clients contend for one lock in a DynamoDB table, and counts the holders.
package dynamodb

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cirello.io/dynamolock/v2"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	_ "github.com/holdfast-go/holdfast/store/dynamodb"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

var rounds = flag.Int("rounds", 10, "how often each client takes the lock")

var shared = sync.OnceValues(func() (*dynamodbtest.Server, error) {
	s, err := dynamodbtest.Start(context.Background())
	if err != nil {
		return nil, err
	}
	return s, dynamodbtest.Probe(context.Background(), s.Endpoint)
})

func TestMain(m *testing.M) {
	flag.Parse()
	os.Setenv("AWS_ACCESS_KEY_ID", "test")
	os.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	code := m.Run()
	if s, err := shared(); err == nil {
		s.Stop()
	}
	os.Exit(code)
}

func server(t testing.TB) *dynamodbtest.Server {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func open(t testing.TB, url string) *holdfast.Client {
	t.Helper()
	c, err := holdfast.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func storeURL(endpoint string) string {
	return "dynamodb://locks?region=eu-central-1&create=true&endpoint=" + url.QueryEscape(endpoint)
}

// awslockAt returns the URL of a table in the layout of dynamolock, with dynamolock's lease format.
func awslockAt(endpoint string) string {
	return "dynamodb://awslocks?region=eu-central-1&create=true&layout=awslock&lease-format=duration&endpoint=" +
		url.QueryEscape(endpoint)
}

func dynamolockAt(t testing.TB, endpoint string, lease time.Duration,
	opts ...dynamolock.ClientOption) *dynamolock.Client {
	t.Helper()
	c, err := dynamolock.New(dynamodbtest.Client(endpoint), "awslocks",
		append([]dynamolock.ClientOption{dynamolock.WithLeaseDuration(lease),
			dynamolock.WithHeartbeatPeriod(lease / 4)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func name() string { return strings.ToLower(rand.Text()[:10]) }

// TestDynamolock: clients of dynamolock and ours contend, and never hold one lock together.
func TestDynamolock(t *testing.T) {
	t.Parallel()
	endpoint := server(t).Endpoint
	ours := open(t, awslockAt(endpoint))
	lock := name()
	lockers := []func() (unlock func() error, err error){
		func() (func() error, error) {
			l, err := ours.Mutex(lock, nil).Lock(t.Context())
			if err != nil {
				return nil, err
			}
			return l.Release, nil
		},
	}
	for range 2 {
		theirs := dynamolockAt(t, endpoint, 20*time.Second) // longer than the emulator is busy
		defer theirs.CloseWithContext(context.WithoutCancel(t.Context()))
		lockers = append(lockers, func() (func() error, error) {
			l, err := theirs.AcquireLock(lock, dynamolock.WithRefreshPeriod(10*time.Millisecond),
				dynamolock.WithAdditionalTimeToWaitForLock(time.Minute))
			if err != nil {
				return nil, err
			}
			return func() error {
				if ok, err := theirs.ReleaseLock(l); err != nil || !ok {
					return fmt.Errorf("dynamolock has lost its lock: %v", err)
				}
				return nil
			}, nil
		})
	}
	contend(t, lockers)
}

// contend makes all lockers take the lock again and again, and counts.
func contend(t *testing.T, lockers []func() (func() error, error)) {
	t.Helper()
	var inside, most, turns atomic.Int32
	var wg sync.WaitGroup
	for i, lock := range lockers {
		wg.Go(func() {
			for range *rounds {
				unlock, err := lock()
				if err != nil {
					t.Errorf("locker %d: %v", i, err)
					return
				}
				if n := inside.Add(1); n > 1 {
					most.Store(n)
				}
				time.Sleep(2 * time.Millisecond)
				inside.Add(-1)
				turns.Add(1)
				if err := unlock(); err != nil {
					t.Errorf("locker %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d turns of %d clients", turns.Load(), len(lockers))
	if most.Load() > 0 {
		t.Errorf("%d held the lock at a time", most.Load())
	}
}

// TestDynamolockDies: a dead client of either kind is replaced by the other when its lease has passed, and not
// before.
func TestDynamolockDies(t *testing.T) {
	t.Parallel()
	endpoint := server(t).Endpoint
	const lease = 2 * time.Second
	s, err := driver.Open(t.Context(), awslockAt(endpoint))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	claim := func(lock string) driver.Claim {
		return driver.Claim{Name: lock, ID: name(), Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: lease,
			Wait: true, Owner: "ours"}
	}
	var wg sync.WaitGroup
	wg.Go(func() { // theirs dies
		dead, lock := dynamolockAt(t, endpoint, lease, dynamolock.DisableHeartbeat()), name()
		var machine pace.Pace
		defer machine.Watch()()
		from := time.Now()
		if _, err := dead.AcquireLock(lock); err != nil {
			t.Error(err)
			return
		}
		probe := claim(lock)
		probe.Wait = false
		var held *driver.HeldError
		if _, err := s.Acquire(t.Context(), probe); !errors.As(err, &held) || len(held.Holders) != 1 ||
			!held.Holders[0].Foreign || held.Holders[0].TTL != lease {
			t.Errorf("beside dynamolock's holder: %+v %v", held, err)
		}
		g, err := s.Acquire(t.Context(), claim(lock))
		took := time.Since(from)
		if err != nil || took < lease || took > 2*lease+20*time.Second+machine.Lost(from) {
			t.Errorf("a dead holder of dynamolock was replaced after %v: %v", took, err)
			return
		}
		t.Logf("a dead holder of dynamolock was replaced after %v, its lease being %v", took.Round(time.Millisecond),
			lease)
		if err := s.Release(t.Context(), g.Claim, ""); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() { // ours dies
		lock := name()
		g, err := s.Acquire(t.Context(), claim(lock))
		if err != nil {
			t.Error(err)
			return
		}
		theirs := dynamolockAt(t, endpoint, lease)
		defer theirs.CloseWithContext(context.WithoutCancel(t.Context()))
		l, err := theirs.AcquireLock(lock, dynamolock.WithRefreshPeriod(50*time.Millisecond),
			dynamolock.WithAdditionalTimeToWaitForLock(time.Minute))
		took := s.Info().Clock.Since(g.Since)
		if err != nil || took < lease {
			t.Errorf("our dead holder was replaced after %v: %v", took, err)
			return
		}
		t.Logf("our dead holder was replaced by dynamolock after %v, its TTL being %v", took.Round(time.Millisecond),
			lease)
		var lost error
		s.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) { lost = r.Err })
		if !errors.Is(lost, driver.ErrLost) {
			t.Errorf("our holder is told %v", lost)
		}
		if ok, err := theirs.ReleaseLock(l); err != nil || !ok {
			t.Error(err)
		}
		next, err := s.Acquire(t.Context(), claim(lock))
		if err != nil || next.Token <= g.Token {
			t.Errorf("token %d after %d, with dynamolock in between: %v", next.Token, g.Token, err)
		}
	})
	wg.Wait()
}

// TestLeases: a holder is understood in whatever format its lease is written. One whose lease cannot be read holds
// the lock until an operator breaks it.
func TestLeases(t *testing.T) {
	t.Parallel()
	endpoint := server(t).Endpoint
	client := dynamodbtest.Client(endpoint)
	s, err := driver.Open(t.Context(), strings.Replace(awslockAt(endpoint), "lease-format=duration",
		"lease-format=millis", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	text := func(v string) types.AttributeValue { return &types.AttributeValueMemberS{Value: v} }
	number := func(n int64) types.AttributeValue { return &types.AttributeValueMemberN{Value: fmt.Sprint(n)} }
	var wg sync.WaitGroup
	for what, c := range map[string]struct {
		lease types.AttributeValue
		more  map[string]types.AttributeValue
		ends  bool
	}{
		"java: milliseconds":         {text("1000"), nil, true},
		"go: a duration":             {text("1s"), nil, true},
		"seconds":                    {number(1), nil, true},
		"rust: an end that has been": {number(time.Now().Unix() - 60), nil, true},
		"rust: an end to come":       {number(time.Now().Unix() + 3600), nil, false},
		"not to be taken": {text("1s"), map[string]types.AttributeValue{"isNonAcquirable": text("1")},
			false},
		"nonsense": {text("soon"), nil, false},
		"none":     {&types.AttributeValueMemberBOOL{Value: true}, nil, false},
	} {
		wg.Go(func() {
			it := map[string]types.AttributeValue{"key": text(what), "ownerName": text("them"),
				"leaseDuration":       c.lease,
				"recordVersionNumber": text("uuid")}
			for k, v := range c.more {
				it[k] = v
			}
			if _, err := client.PutItem(t.Context(),
				&sdk.PutItemInput{TableName: new("awslocks"), Item: it}); err != nil {
				t.Error(err)
				return
			}
			timeLimit := 4 * time.Second
			if c.ends {
				timeLimit = time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
			defer cancel()
			claim := driver.Claim{Name: what, ID: name(), Kind: driver.KindMutex, Limit: 1, Weight: 1,
				TTL: 20 * time.Second, Wait: true}
			_, err := s.Acquire(ctx, claim)
			if (err == nil) != c.ends {
				t.Errorf("%s: %v", what, err)
			}
			if c.ends {
				return
			}
			l, err := s.Inspect(t.Context(), what)
			if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign || l.Holders[0].Owner != "them" {
				t.Errorf("%s: shown as %+v, %v", what, l, err)
				return
			}
			if err := s.Break(t.Context(), what, l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	wg.Wait()
	out, err := client.GetItem(t.Context(), &sdk.GetItemInput{TableName: new("awslocks"),
		Key: map[string]types.AttributeValue{"key": text("seconds")}})
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := out.Item["leaseDuration"].(*types.AttributeValueMemberS); !ok || v.Value != "20000" {
		t.Errorf("written as %v", out.Item["leaseDuration"])
	}
}
