package dynamodb

import (
	"context"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestPlainClientRefusedWhileHeld: while a claim of ours holds the lock the common conditional put is refused,
// across renewals, and until the claim expires if its holder dies. It succeeds directly after a release.
func TestPlainClientRefusedWhileHeld(t *testing.T) {
	t.Parallel()
	table, client := newTableName(), dynamodbtest.Client(sharedServer(t).Endpoint)
	s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	g := acquire(t, s, mutexClaim("m", 8*time.Second))
	for s.Info().Clock.Since(g.Since) < 10*time.Second {
		if mustPlainLock(t, client, table, "m", 1<<33) {
			t.Fatal("the plain put took a lock that is held")
		}
		if err := renew(t, s, g).Err; err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	release(t, s, g.Claim)
	if !mustPlainLock(t, client, table, "m", time.Now().Unix()+60) {
		t.Fatal("the plain put was refused on an idle lock")
	}

	g = acquire(t, s, mutexClaim("silent", 4*time.Second))
	eventually(t, "the plain put after a silent holder",
		func() bool { return mustPlainLock(t, client, table, "silent", 1<<33) })
	if passed := s.Info().Clock.Since(g.Since); passed < g.GrantedTTL {
		t.Errorf("the plain put was let in %v after the start of a grant of %v", passed, g.GrantedTTL)
	}
	if err := renew(t, s, g).Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("a holder whose lock a foreign client took is told %v", err)
	}
	fair := mutexClaim("line", time.Minute)
	fair.Fair = true
	g = acquire(t, s, fair)
	line := make(chan error, 1)
	next := waitingClaim(fair)
	next.ID = "next"
	go func() { _, err := s.Acquire(t.Context(), next); line <- err }()
	eventually(t, "a claim in line", func() bool {
		l, err := s.Inspect(t.Context(), "line")
		return err == nil && len(l.Waiters) == 1
	})
	release(t, s, g.Claim)
	if mustPlainLock(t, client, table, "line", 1<<33) {
		t.Error("the plain put went before a claim of ours that was promoted")
	}
	if err := <-line; err != nil {
		t.Error(err)
	}
}

// TestPlainHolderRespected: an item of the common pattern excludes our claims until its own end, by the service's
// clock, and is shown as a foreign holder. After its end it is taken over at once, even while the item still
// exists, and none of its attributes remains. Tokens rise across it.
func TestPlainHolderRespected(t *testing.T) {
	t.Parallel()
	table, client := newTableName(), dynamodbtest.Client(sharedServer(t).Endpoint)
	s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	first := acquire(t, s, mutexClaim("m", time.Minute))
	release(t, s, first.Claim)
	until := time.Now().Unix() + 10
	if !mustPlainLock(t, client, table, "m", until) {
		t.Fatal("the plain put was refused on an idle lock")
	}
	for _, c := range []driver.Claim{mutexClaim("m", time.Minute),
		{Name: "m", ID: "rw", Kind: driver.KindRW, Limit: driver.RWLimit, Weight: 1, TTL: time.Minute}} {
		var held *driver.HeldError
		if _, err := s.Acquire(t.Context(), c); !errors.As(err, &held) || len(held.Holders) != 1 ||
			!held.Holders[0].Foreign {
			t.Fatalf("next to a plain holder a %s is told %v", c.Kind, err)
		}
	}
	h := holdersOf(t, s, "m")
	if len(h) != 1 || !h[0].Foreign {
		t.Fatalf("a plain holder is shown as %+v", h)
	}
	if err := s.Break(t.Context(), "m", h[0].Ref, driver.Break{Mode: driver.BreakRequestRelease}); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("asking a foreign holder: %v", err)
	}
	var g [2]driver.Grant
	var wg sync.WaitGroup
	for i := range g {
		c := waitingClaim(mutexClaim("m", time.Minute))
		c.Fair = i == 1
		wg.Go(func() {
			g[i] = acquire(t, s, c)
			if now := time.Now(); now.Before(time.Unix(until+1, 0)) {
				t.Errorf("let in at %v next to a plain item that ends with second %d", now, until)
			} else {
				t.Logf("let in %v after the end of a plain item",
					now.Sub(time.Unix(until+1, 0)).Round(time.Millisecond))
			}
			release(t, s, g[i].Claim)
		})
	}
	wg.Wait()
	if g[0].Token <= first.Token || g[1].Token <= first.Token || g[0].Token == g[1].Token {
		t.Errorf("tokens %d and %d after %d", g[0].Token, g[1].Token, first.Token)
	}
	if it := getItem(t, client, table, "m"); len(it) != 4 || it["owner"] != nil {
		t.Errorf("of a foreign item that was taken over there is left: %v", it)
	}

	putItem(t, client, table, item{"primary_id": textValue("over"), "expired_at": numberText(time.Now().Unix() - 1000)})
	release(t, s, acquire(t, s, mutexClaim("over", time.Minute)).Claim)
	for _, forEver := range []item{{}, {"expired_at": textValue("tomorrow")}, {"expired_at": numberText(1 << 60)}} {
		forEver["primary_id"] = textValue("forever")
		putItem(t, client, table, forEver)
		if _, err := s.Acquire(t.Context(), mutexClaim("forever", time.Minute)); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%v: %v", forEver, err)
		}
		if err := s.Break(t.Context(), "forever", holdersOf(t, s, "forever")[0].Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
			t.Errorf("%v: breaking it: %v", forEver, err)
		}
		release(t, s, acquire(t, s, mutexClaim("forever", time.Minute)).Claim)
	}
}

// TestPlainUpdate: a foreign client that takes an expired item of ours by an update, which keeps our attributes,
// is a holder like any other.
func TestPlainUpdate(t *testing.T) {
	t.Parallel()
	table, client := newTableName(), dynamodbtest.Client(sharedServer(t).Endpoint)
	s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	g := acquire(t, s, mutexClaim("m", time.Minute))
	release(t, s, g.Claim)
	_, err := client.UpdateItem(t.Context(),
		&sdk.UpdateItemInput{TableName: &table, Key: item{"primary_id": textValue("m")},
			UpdateExpression: new("SET expired_at = :until"), ConditionExpression: new("expired_at < :now"),
			ExpressionAttributeValues: item{":until": numberText(time.Now().Unix() + 60),
				":now": numberText(time.Now().Unix())}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(t.Context(), mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	if err := s.Break(t.Context(), "m", holdersOf(t, s, "m")[0].Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
		t.Fatal(err)
	}
	if next := acquire(t, s, mutexClaim("m", time.Minute)); next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
}

// ownerClient is a foreign client that recognises its locks by an attribute, as good ones do. Each method reports
// whether the service accepted it.
type ownerClient struct {
	t           *testing.T
	client      *sdk.Client
	table, name string
}

func (o ownerClient) wasAccepted(err error) bool {
	o.t.Helper()
	var refused *types.ConditionalCheckFailedException
	if err != nil && !errors.As(err, &refused) {
		o.t.Fatal(err)
	}
	return err == nil
}

// take puts the item if it is absent, over, or its own.
func (o ownerClient) take(name string, until time.Time) bool {
	o.t.Helper()
	_, err := o.client.PutItem(o.t.Context(), &sdk.PutItemInput{TableName: &o.table,
		Item: item{"primary_id": textValue(name), "expired_at": numberText(until.Unix()),
			"owner": textValue(o.name)},
		ConditionExpression:       new("attribute_not_exists(primary_id) OR expired_at < :now OR #o = :me"),
		ExpressionAttributeNames:  map[string]string{"#o": "owner"},
		ExpressionAttributeValues: item{":now": numberText(time.Now().Unix()), ":me": textValue(o.name)}})
	return o.wasAccepted(err)
}

// update does the same to single attributes, and leaves the others.
func (o ownerClient) update(name, condition string, until time.Time) bool {
	o.t.Helper()
	values := item{":until": numberText(until.Unix()), ":me": textValue(o.name)}
	if strings.Contains(condition, ":now") {
		values[":now"] = numberText(time.Now().Unix())
	}
	_, err := o.client.UpdateItem(o.t.Context(),
		&sdk.UpdateItemInput{TableName: &o.table, Key: item{"primary_id": textValue(name)},
			UpdateExpression: new("SET expired_at = :until, #o = :me"), ConditionExpression: &condition,
			ExpressionAttributeNames: map[string]string{"#o": "owner"}, ExpressionAttributeValues: values})
	return o.wasAccepted(err)
}

func (o ownerClient) renew(name string, until time.Time) bool {
	o.t.Helper()
	return o.update(name, "#o = :me", until)
}

func (o ownerClient) delete(name string) bool {
	o.t.Helper()
	_, err := o.client.DeleteItem(o.t.Context(),
		&sdk.DeleteItemInput{TableName: &o.table, Key: item{"primary_id": textValue(name)},
			ConditionExpression: new("#o = :me"), ExpressionAttributeNames: map[string]string{"#o": "owner"},
			ExpressionAttributeValues: item{":me": textValue(o.name)}})
	return o.wasAccepted(err)
}

// TestPlainOwner promises that a foreign client which died for a while, and whose item a claim of ours has taken
// over, is not the owner any more. It can neither renew, retake nor delete the lock, whether it had put the item,
// or updated one that was absent, foreign or ours. Once the lock is free, it excludes other clients again.
func TestPlainOwner(t *testing.T) {
	t.Parallel()
	table := newTableName()
	them := ownerClient{t, dynamodbtest.Client(sharedServer(t).Endpoint), table, "me"}
	s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	past, later := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	const free = "attribute_not_exists(primary_id) OR expired_at < :now"
	for what, holds := range map[string]func(name string, until time.Time) bool{
		"put":                  them.take,
		"updated where absent": func(name string, until time.Time) bool { return them.update(name, free, until) },
		"updated a foreign one": func(name string, until time.Time) bool {
			return them.take(name, past) && them.update(name, free, until)
		},
		"updated one of ours": func(name string, until time.Time) bool {
			release(t, s, acquire(t, s, mutexClaim(name, time.Minute)).Claim)
			return them.update(name, free, until)
		},
		"was in one of ours": func(name string, until time.Time) bool { // which has it from before
			g := acquire(t, s, mutexClaim(name, time.Minute))
			_, err := them.client.UpdateItem(t.Context(),
				&sdk.UpdateItemInput{TableName: &table, Key: item{"primary_id": textValue(name)},
					UpdateExpression: new("SET #o = :me"), ExpressionAttributeNames: map[string]string{"#o": "owner"},
					ExpressionAttributeValues: item{":me": textValue(them.name)}})
			release(t, s, g.Claim)
			return err == nil
		},
	} {
		if !holds(what, past) { // it has not renewed in time
			t.Fatalf("%s: the foreign client was kept out of a free lock", what)
		}
		first := acquire(t, s, mutexClaim(what, time.Hour))
		for step, let := range map[string]bool{"renew": them.renew(what, later), "take": them.take(what, later),
			"delete": them.delete(what)} {
			if let {
				t.Errorf("%s: it may still %s what one of ours has taken over", what, step)
			}
		}
		if err := renew(t, s, first).Err; err != nil {
			t.Errorf("%s: our renewal: %v", what, err)
		}
		if them.renew(what, later) || them.delete(what) {
			t.Errorf("%s: it owns the lock after a renewal of ours", what)
		}
		release(t, s, first.Claim)
		if them.renew(what, later) || !them.take(what, later) {
			t.Errorf("%s: it may renew what it does not hold, or not take what is free", what)
		}
		if _, err := s.Acquire(t.Context(), mutexClaim(what, time.Minute)); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: next to a foreign holder: %v", what, err)
		}
		if !them.renew(what, later.Add(time.Minute)) || !them.delete(what) {
			t.Errorf("%s: it may not renew or delete what it holds", what)
		}
		if next := acquire(t, s, mutexClaim(what, time.Minute)); next.Token <= first.Token {
			t.Errorf("%s: token %d after %d", what, next.Token, first.Token)
		}
	}
}

// TestDeletion: the table's TTL or an operator may remove an item at any time. The holder loses the lock, and
// tokens rise across it.
func TestDeletion(t *testing.T) {
	t.Parallel()
	table, client := newTableName(), dynamodbtest.Client(sharedServer(t).Endpoint)
	s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	g := acquire(t, s, mutexClaim("early", time.Minute))
	deleteItem(t, client, table, "early")
	if err := renew(t, s, g).Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("a holder whose item was removed is told %v", err)
	}
	time.Sleep(s.Info().TokenGap)
	other := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	next := acquire(t, other, mutexClaim("early", time.Minute))
	if next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
	putItem(t, client, table, item{"primary_id": textValue("early"), "expired_at": numberText(time.Now().Unix() + 60)})
	if l := lossOf(renew(t, other, next).Err); l != driver.LossTaken {
		t.Errorf("a holder whose item was replaced is told %q", l)
	}
	if err := other.Release(t.Context(), next.Claim, ""); !errors.Is(err, driver.ErrLost) {
		t.Errorf("releasing a lock that was taken: %v", err)
	}
	if it := getItem(t, client, table, "early"); len(it) != 2 {
		t.Errorf("a foreign item was changed: %v", it)
	}
	putItem(t, client, table, item{"primary_id": textValue("torn"), "expired_at": numberText(5),
		versionAttribute: textValue("5.x"), dataAttribute: textValue("{")})
	if _, err := s.Acquire(t.Context(), mutexClaim("torn", time.Minute)); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("on a torn record: %v", err)
	}
}

// TestPlainContended: when clients of the common pattern and ours try at the same moment, at most one succeeds, in
// every round, whatever state the previous holder has left.
func TestPlainContended(t *testing.T) {
	t.Parallel()
	rounds := 60
	if *prove {
		rounds = 1000
	}
	table := newTableName()
	var stores [2]driver.Store
	var clients [2]*sdk.Client
	for i := range stores {
		stores[i] = mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
		clients[i] = dynamodbtest.Client(sharedServer(t).Endpoint)
	}
	release(t, stores[0], acquire(t, stores[0], mutexClaim("m", time.Minute)).Claim)
	mustPlainLock(t, clients[0], table, "m", time.Now().Unix()-10)
	usual := time.Millisecond // how long the slowest try of the round before took
	var won [2]int
	for round := range rounds {
		var mu sync.Mutex
		var in []func() error
		var slowest time.Duration
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range 4 {
			kind, s, client := i/2, stores[i%2], clients[i%2]
			wg.Go(func() {
				<-start
				if kind == round%2 { // so that both kinds win some rounds
					time.Sleep(mrand.N(2 * usual))
				}
				began := time.Now()
				var leave func() error
				owner := fmt.Sprint(round, i)
				if kind == 0 {
					c := mutexClaim("m", time.Minute)
					if _, err := s.Acquire(t.Context(), c); err == nil {
						leave = func() error { return s.Release(t.Context(), c, "") }
					} else if !errors.Is(err, driver.ErrHeld) {
						t.Error(err)
					}
				} else if took, err := plainLock(t.Context(), client, table, "m", owner,
					time.Now().Unix()+60); err != nil {
					t.Error(err)
				} else if took {
					leave = func() error { return plainUnlock(t, client, table, "m", owner, round%3 == 0) }
				}
				mu.Lock()
				defer mu.Unlock()
				slowest = max(slowest, time.Since(began))
				if leave != nil {
					won[kind]++
					in = append(in, leave)
				}
			})
		}
		close(start)
		wg.Wait()
		if len(in) != 1 {
			t.Fatalf("round %d: %d were let in", round, len(in))
		}
		if err := in[0](); err != nil {
			t.Fatal(err)
		}
		usual = slowest
	}
	t.Logf("%d rounds, %d to ours, %d to plain clients, never two", rounds, won[0], won[1])
	if won[0] == 0 || won[1] == 0 {
		t.Errorf("ours won %d of %d rounds: nothing was shown", won[0], rounds)
	}
}

// plainUnlock ends or removes an item of the common pattern.
func plainUnlock(t testing.TB, client *sdk.Client, table, key, owner string, delete bool) error {
	who := item{":owner": textValue(owner)}
	if delete {
		_, err := client.DeleteItem(t.Context(),
			&sdk.DeleteItemInput{TableName: &table, Key: item{"primary_id": textValue(key)},
				ConditionExpression: new("#o = :owner"), ExpressionAttributeNames: map[string]string{"#o": "owner"}, ExpressionAttributeValues: who})
		return err
	}
	who[":past"] = numberText(time.Now().Unix() - 10)
	_, err := client.UpdateItem(t.Context(),
		&sdk.UpdateItemInput{TableName: &table, Key: item{"primary_id": textValue(key)},
			UpdateExpression: new("SET expired_at = :past"), ConditionExpression: new("#o = :owner"),
			ExpressionAttributeNames: map[string]string{"#o": "owner"}, ExpressionAttributeValues: who})
	return err
}

// TestNamesOfTable: the user chooses the names of the table and of the attributes. They may be words that DynamoDB
// reserves.
func TestNamesOfTable(t *testing.T) {
	t.Parallel()
	table, client := newTableName()+".Locks_1", dynamodbtest.Client(sharedServer(t).Endpoint)
	s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, "&partition-key=name&ttl-attribute=ttl&prefix=app/"))
	g := acquire(t, s, mutexClaim("m", time.Minute))
	out, err := client.Scan(t.Context(), &sdk.ScanInput{TableName: &table})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Items) != 1 || stringOf(out.Items[0]["name"]) != "app/m" || out.Items[0]["ttl"] == nil ||
		len(out.Items[0]) != 4 {
		t.Errorf("the table has %v", out.Items)
	}
	size := 0
	for k, v := range out.Items[0] {
		size += len(k) + len(fmt.Sprint(v.(interface{}))) // roughly
		if s, ok := v.(*types.AttributeValueMemberS); ok {
			size += len(s.Value)
		}
	}
	t.Logf("the item of a held mutex has about %d bytes", size)
	if size > 1024 {
		t.Errorf("it costs more than one write unit")
	}
	release(t, s, g.Claim)
	e := s.Explain(g.Claim)
	if len(e.Keys) != 1 || !strings.Contains(e.Keys[0], "name=app/m") {
		t.Errorf("explained as %v", e)
	}
}

// TestPlainWatched: a client that watches a lock of the common pattern learns when it expires, although nothing is
// written then.
func TestPlainWatched(t *testing.T) {
	t.Parallel()
	table, client := newTableName(), dynamodbtest.Client(sharedServer(t).Endpoint)
	s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	if !mustPlainLock(t, client, table, "m", time.Now().Unix()+10) {
		t.Fatal("the plain client is kept out")
	}
	held, err := s.Inspect(t.Context(), "m")
	if err != nil || len(held.Holders) != 1 {
		t.Fatalf("%+v %v", held, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if l, err := s.NextChange(ctx, held); err != nil || len(l.Holders) > 0 {
		t.Errorf("after the end: %+v %v", l, err)
	}
}
