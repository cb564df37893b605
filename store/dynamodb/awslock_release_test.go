package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestAWSLockReleaseAfterLostReply promises that a release whose first reply was lost says who ended the claim:
// the release itself, an operator, or a client that came after it had expired, even if other clients have held the
// lock since. If a foreign client has written the item since, the release says that it does not know. A renewal
// also says that an operator ended the claim.
func TestAWSLockReleaseAfterLostReply(t *testing.T) {
	t.Parallel()
	type ending struct {
		by   func(t *testing.T, s driver.Store, g driver.Grant, leave func()) error // leave is the release that is lost
		want driver.LossCause
		is   error
	}
	breaks := func(t *testing.T, s driver.Store, g driver.Grant) {
		if err := s.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
			t.Fatal(err)
		}
	}
	takes := func(t *testing.T, s driver.Store, n int) {
		c := waitingClaim(mutexClaim("m", time.Minute))
		c.ID = fmt.Sprint("taker", n)
		release(t, s, acquire(t, s, c).Claim)
	}
	for what, e := range map[string]ending{
		"nobody": {by: func(t *testing.T, s driver.Store, g driver.Grant, leave func()) error {
			leave()
			return nil
		}},
		"nobody, and it was taken": {by: func(t *testing.T, s driver.Store, g driver.Grant, leave func()) error {
			leave()
			takes(t, s, 1)
			return nil
		}},
		"an operator": {want: driver.LossBroken,
			by: func(t *testing.T, s driver.Store, g driver.Grant, leave func()) error {
				breaks(t, s, g)
				leave()
				return nil
			}},
		"an operator, and it was taken": {want: driver.LossBroken,
			by: func(t *testing.T, s driver.Store, g driver.Grant, leave func()) error {
				breaks(t, s, g)
				for n := range 3 {
					takes(t, s, n)
				}
				leave()
				return nil
			}},
		"one who came later": {want: driver.LossExpired,
			by: func(t *testing.T, s driver.Store, g driver.Grant, leave func()) error {
				takes(t, s, 1)
				leave()
				return nil
			}},
		"a foreign client": {is: driver.ErrUncertain,
			by: func(t *testing.T, s driver.Store, g driver.Grant, leave func()) error {
				leave()
				_, err := s.(*awslockStore).client.PutItem(t.Context(),
					&sdk.PutItemInput{TableName: &s.(*awslockStore).tableName,
						Item: item{"key": textValue("m"), ownerAttribute: textValue("them"),
							leaseAttribute: textValue("60000"),
							rvnAttribute:   textValue("theirs")}})
				return err
			}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			table, p := newTableName(), newProxy(t, sharedServer(t).Direct)
			holder := mustOpen(t, urlOf(table, p.Endpoint, "&layout=awslock"))
			other := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, "&layout=awslock"))
			g := acquire(t, holder, mutexClaim("m", 10*time.Second)) // the release has as long to be answered
			lost, goOn, told := make(chan bool), make(chan bool), make(chan error, 1)
			var asked atomic.Int32
			p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
				switch asked.Add(1) {
				case 1:
					return dynamodbtest.Fate{DropReply: true}
				case 2:
					close(lost) // the second try has arrived, so the first one has ended
				}
				select {
				case <-goOn:
					return dynamodbtest.Fate{}
				default:
					return dynamodbtest.Fate{DropRequest: true}
				}
			})
			leave := func() {
				go func() { told <- holder.Release(t.Context(), g.Claim, "") }()
				<-lost
			}
			if err := e.by(t, other, g, leave); err != nil {
				t.Fatal(err)
			}
			if e.want == driver.LossBroken { // not through the holder's proxy, which loses what it sends
				if l := lossOf(renew(t, other, g).Err); l != driver.LossBroken {
					t.Errorf("a renewal is told %q", l)
				}
			}
			close(goOn)
			err := <-told
			if l := lossOf(err); l != e.want || e.is != nil && !errors.Is(err, e.is) || e.want == "" && e.is == nil &&
				err != nil {
				t.Errorf("told %v, want %q %v", err, e.want, e.is)
			}
		})
	}
}

// TestAWSLockReleaseNotSent promises that a release which could not be sent at first is not uncertain: it cannot
// have ended the claim.
func TestAWSLockReleaseNotSent(t *testing.T) {
	t.Parallel()
	table, s := newTableName(), sharedServer(t)
	other := mustOpen(t, urlOf(table, s.Endpoint, "&layout=awslock"))
	var failing atomic.Int32
	client := sdk.New(dynamodbtest.Client(s.Endpoint).Options(), func(o *sdk.Options) {
		o.HTTPClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if failing.Add(-1) >= 0 {
					return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("refused")}
				}
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}}}
	})
	holder, err := New(t.Context(), client, table, &Options{Layout: LayoutAWSLock})
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	g := acquire(t, holder, mutexClaim("m", time.Minute))
	if _, err := client.DeleteItem(t.Context(),
		&sdk.DeleteItemInput{TableName: aws.String(table), Key: item{"key": textValue("m")}}); err != nil {
		t.Fatal(err)
	}
	acquire(t, other, mutexClaim("m", time.Minute))
	failing.Store(2)
	if err := holder.Release(t.Context(), g.Claim, ""); !errors.Is(err, driver.ErrLost) ||
		errors.Is(err, driver.ErrUncertain) {
		t.Errorf("a release whose requests failed: %v", err)
	}
}

// TestAWSLockLateTake promises that after the release of a claim whose take is still on its way, the take is refused
// when it arrives, even if another client made the item with a smaller token while the release looked at it.
func TestAWSLockLateTake(t *testing.T) {
	t.Parallel()
	table, direct := newTableName(), dynamodbtest.Client(sharedServer(t).Endpoint)
	p := newProxy(t, sharedServer(t).Direct)
	s := mustOpen(t, urlOf(table, p.Endpoint, "&layout=awslock"))
	take, cancel := context.WithCancel(t.Context())
	var late dynamodbtest.Request // the take, which arrives last
	var reads int
	p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
		switch {
		case late.Operation == "":
			late = r
			cancel()
			return dynamodbtest.Fate{DropRequest: true}
		case r.Operation == "GetItem":
			if reads++; reads == 1 { // the release has found no item
				putItem(t, direct, table, item{"key": textValue("m"), ownerAttribute: textValue("other"),
					leaseAttribute: textValue("1000"), releasedAttribute: textValue("1"), tokenAttribute: numberText(1),
					rvnAttribute: textValue(versionNumber{claimID: "other", token: 1}.makeUnique())})
			}
		}
		return dynamodbtest.Fate{}
	})
	c := mutexClaim("m", time.Minute)
	if _, err := s.Acquire(take, c); !errors.Is(err, driver.ErrUncertain) {
		t.Fatalf("a take that was given up: %v", err)
	}
	if err := s.Release(t.Context(), c, ""); !errors.Is(err, driver.ErrLost) {
		t.Fatalf("its release: %v", err)
	}
	if reads == 0 {
		t.Fatal("the release did not look at the item")
	}
	sendAgain(t, p.Endpoint, late)
	if held := holdersOf(t, s, "m"); len(held) > 0 {
		t.Errorf("after its release the claim holds the lock: %+v", held)
	}
}

// sendAgain sends a recorded request.
func sendAgain(t *testing.T, endpoint string, r dynamodbtest.Request) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint, strings.NewReader(r.Body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-amz-json-1.0")
	request.Header.Set("X-Amz-Target", "DynamoDB_20120810."+r.Operation)
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/eu-central-1/dynamodb/aws4_request, "+
		"SignedHeaders=host, Signature=0")
	request.Header.Set("X-Amz-Date", time.Now().UTC().Format("20060102T150405Z"))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK && !strings.Contains(string(text), "ConditionalCheckFailed") {
		t.Errorf("the late take: %s %s", answer.Status, text)
	}
}

// TestAWSLockForgetsOldTakes promises that takes of unknown outcome whose claims are never released are forgotten
// in the end.
func TestAWSLockForgetsOldTakes(t *testing.T) {
	t.Parallel()
	var passed time.Duration
	hand := func() time.Duration { return passed }
	client := sdk.New(sdk.Options{Region: "x"})
	a := newAWSLock(newTableClient(client, "locks",
		&Options{Layout: LayoutAWSLock, Clock: driver.Clock{Monotonic: hand, Boottime: hand}}),
		LeaseFormatMillis, 0)
	defer a.Close()
	for n := range 2000 {
		a.rememberTake(fmt.Sprint("old", n), 1)
	}
	passed += driver.MaxTTL + time.Second
	for n := range 2000 {
		a.rememberTake(fmt.Sprint("new", n), 1)
	}
	if len(a.pendingTakes) > 2500 {
		t.Errorf("%d are remembered, 2000 of which may yet take effect", len(a.pendingTakes))
	}
	if _, flying := a.pendingToken("new0"); !flying {
		t.Error("one that may yet take effect is forgotten")
	}
}

// TestForeignWatch promises that with foreign-watch a caller that only tries watches a foreign holder for its
// lease, and takes over from a dead one even if no client had waited before. It is refused as soon as the holder
// shows that it is alive. Without foreign-watch, or if the lease is longer, the caller is refused at once, and
// Examine says so.
func TestForeignWatch(t *testing.T) {
	t.Parallel()
	table, direct := newTableName(), dynamodbtest.Client(sharedServer(t).Endpoint)
	watches := func(more string) driver.Store {
		return mustOpen(t, urlOf(table, sharedServer(t).Endpoint, "&layout=awslock"+more))
	}
	foreign := func(name, rvn string, lease time.Duration) {
		putItem(t, direct, table, item{"key": textValue(name), ownerAttribute: textValue("them"),
			leaseAttribute: textValue(fmt.Sprint(lease.Milliseconds())), rvnAttribute: textValue(rvn)})
	}
	tries := func(s driver.Store, name string) (time.Duration, error) {
		from := time.Now()
		_, err := s.Acquire(t.Context(), mutexClaim(name, time.Minute))
		return time.Since(from), err
	}
	const lease = 8 * time.Second // the emulator may be busy for seconds
	plain, patient := watches(""), watches("&foreign-watch=30s")
	storetest.ExpectFindings(t, "without foreign-watch", plain, "dynamodb-foreign-watch")
	storetest.ExpectFindings(t, "with foreign-watch", patient)
	var machine pace.Pace
	defer machine.Watch()()
	foreign("dead", "theirs", lease)
	for range 3 {
		from := time.Now()
		if took, err := tries(watches(""), "dead"); !errors.Is(err, driver.ErrHeld) ||
			took > lease+10*machine.Worst(from) {
			t.Errorf("one who only tries: %v after %v", err, took)
		}
	}
	if took, err := tries(patient, "dead"); err != nil || took < lease {
		t.Errorf("one who tries and watches: %v after %v", err, took)
	}
	foreign("long", "theirs", time.Minute)
	if took, err := tries(patient, "long"); !errors.Is(err, driver.ErrHeld) || took > 30*time.Second {
		t.Errorf("next to a lease that is longer: %v after %v", err, took)
	}
	foreign("alive", "theirs", 20*time.Second)
	time.AfterFunc(time.Second, func() { foreign("alive", "theirs again", 20*time.Second) })
	if took, err := tries(patient, "alive"); !errors.Is(err, driver.ErrHeld) || took > 20*time.Second {
		t.Errorf("next to a living holder: %v after %v", err, took)
	}
	if _, err := New(t.Context(), direct, table, &Options{ForeignWatch: time.Second}); !errors.Is(err,
		driver.ErrInvalid) {
		t.Errorf("without that layout: %v", err)
	}
}

// TestTokensAcrossForeignPut promises that tokens rise although a foreign client has put the item and released it,
// if the last grant is as old as Info says. Info says when tokens can fall.
func TestTokensAcrossForeignPut(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{"", "&layout=awslock&partition-key=primary_id"} {
		t.Run("layout"+layout, func(t *testing.T) {
			t.Parallel()
			table, direct := newTableName(), dynamodbtest.Client(sharedServer(t).Endpoint)
			s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, layout))
			if s.Info().TokenRegression == "" {
				t.Error("Info does not say when tokens fall")
			}
			first := acquire(t, s, mutexClaim("m", time.Minute))
			release(t, s, first.Claim)
			putItem(t, direct, table, item{"primary_id": textValue("m"), "expired_at": numberText(1),
				ownerAttribute: textValue("them"), leaseAttribute: textValue("1000"),
				rvnAttribute: textValue("theirs"), releasedAttribute: textValue("1")})
			time.Sleep(s.Info().TokenGap)
			other := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, layout))
			if second := acquire(t, other, mutexClaim("m", time.Minute)); second.Token <= first.Token {
				t.Errorf("token %d after %d", second.Token, first.Token)
			}
		})
	}
}

// TestTokensAcrossRestart promises that tokens rise across a restart of the service.
func TestTokensAcrossRestart(t *testing.T) {
	t.Parallel()
	s, table := startServer(t), newTableName()
	url := urlOf(table, s.Endpoint, "")
	first := mustOpen(t, url)
	g := acquire(t, first, mutexClaim("m", time.Minute))
	release(t, first, g.Claim)
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := acquire(t, mustOpen(t, url), mutexClaim("m", time.Minute)); next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
}
