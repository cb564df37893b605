package s3_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/s3"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

// staticStranger returns credentials that no service knows.
func staticStranger(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "stranger", SecretAccessKey: "stranger-secret"}, nil
}

// terraform sends the requests that Terraform's backend for S3 sends with use_lockfile, by the same SDK with its
// default settings. Terraform itself is not run here.
type terraform struct {
	client *sdk.Client
	state  string // the key of the state
	id     string
}

// lockInfo is the content of Terraform's lock files.
type lockInfo struct {
	ID, Operation, Info, Who, Version string
	Created                           time.Time
	Path                              string
}

// lock takes the lock by a PUT with If-None-Match and a checksum, or reads who holds it.
func (c *terraform) lock(ctx context.Context) (ok bool, by lockInfo, err error) {
	c.id = fmt.Sprintf("%08x-0000-4000-8000-%012x", rand.Uint32(), rand.Uint32())
	text, err := json.Marshal(lockInfo{ID: c.id, Operation: "OperationTypeApply", Who: "ann@laptop", Version: "1.11.0",
		Created: time.Now().UTC(), Path: bucket + "/" + c.state})
	if err != nil {
		return false, by, err
	}
	_, err = c.client.PutObject(ctx, &sdk.PutObjectInput{Bucket: aws.String(bucket), Key: c.key(),
		ContentType: aws.String("application/json"), Body: bytes.NewReader(text), IfNoneMatch: aws.String("*"),
		ChecksumAlgorithm: types.ChecksumAlgorithmSha256})
	if err == nil {
		return true, by, nil
	}
	by, err = c.read(ctx)
	return false, by, err
}

func (c *terraform) key() *string { return aws.String(c.state + ".tflock") }

// read reads the lock file.
func (c *terraform) read(ctx context.Context) (by lockInfo, err error) {
	out, err := c.client.GetObject(ctx, &sdk.GetObjectInput{Bucket: aws.String(bucket), Key: c.key()})
	if err != nil {
		return by, err
	}
	defer out.Body.Close()
	text, err := io.ReadAll(out.Body)
	if err != nil {
		return by, err
	}
	return by, json.Unmarshal(text, &by)
}

// unlock reads the lock file, compares its id, and removes it without a condition. With the id of another holder it is
// what terraform force-unlock does.
func (c *terraform) unlock(ctx context.Context, id string) error {
	switch by, err := c.read(ctx); {
	case err != nil:
		return err
	case by.ID != id:
		return fmt.Errorf("the lock has the id %s, not %s", by.ID, id)
	}
	_, err := c.client.DeleteObject(ctx, &sdk.DeleteObjectInput{Bucket: aws.String(bucket), Key: c.key()})
	return err
}

func newTerraform(t *testing.T, s *s3test.Server) *terraform {
	return &terraform{client: newClient(t, s.URL), state: "terraform/env/prod.tfstate"}
}

// TestTerraform: two of our clients and two of Terraform's contend for one lock. There is never more than one holder.
func TestTerraform(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	fail := func(format string, args ...any) {
		if ctx.Err() == nil {
			t.Errorf(format, args...)
		}
		stop() // and end the others, which may wait for an object that was left behind
	}
	rounds := countFor(4, 300) // for each
	var inside atomic.Int64
	enter := func() {
		if n := inside.Add(1); n != 1 {
			fail("%d hold the lock at a time", n)
		}
		time.Sleep(time.Millisecond)
		inside.Add(-1)
	}
	var all sync.WaitGroup
	for range 2 {
		client, err := holdfast.New(mustOpen(t, s, layoutOptions(s3.LayoutTerraform)), nil)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for range rounds {
				err := client.Do(ctx, "env/prod.tfstate", func(context.Context,
					*holdfast.Lease) error {
					enter()
					return nil
				})
				if err != nil {
					fail("ours: %v", err)
					return
				}
				time.Sleep(rand.N(20 * time.Millisecond))
			}
		})
		theirs := newTerraform(t, s)
		all.Go(func() {
			for range rounds {
				for ok := false; !ok && ctx.Err() == nil; time.Sleep(rand.N(40 * time.Millisecond)) {
					ok, _, _ = theirs.lock(ctx) // the file may be gone when it reads who holds the lock
					if !ok {
						continue
					}
					enter()
					if err := theirs.unlock(ctx, theirs.id); err != nil {
						fail("theirs: %v", err)
					}
				}
			}
		})
	}
	all.Wait()
	t.Logf("each of two clients of ours, and of two of theirs, held the lock %d times", rounds)
}

// TestTerraformHolder: each sees who the other is. A foreign holder refuses our claims, can be broken by force only,
// and does not expire. Terraform can unlock our lock by its id, and our holder learns of it.
func TestTerraformHolder(t *testing.T) {
	t.Parallel()
	const name = "env/prod.tfstate"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := startServer(t)
	store, theirs := mustOpen(t, s, layoutOptions(s3.LayoutTerraform)), newTerraform(t, s)
	if ok, _, err := theirs.lock(ctx); !ok {
		t.Fatalf("Terraform does not get a free lock: %v", err)
	}
	_, err := store.Acquire(ctx, mutexClaim(name, time.Minute))
	var held *driver.HeldError
	if !errors.As(err, &held) || len(held.Holders) != 1 || !held.Holders[0].Foreign || held.Holders[0].Token != 0 ||
		!strings.Contains(held.Holders[0].Owner, "ann@laptop") {
		t.Errorf("Terraform holds the lock, and we are told %v", err)
	}
	var listed []driver.Lock
	for l, err := range store.List(ctx, "env/") {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, l)
	}
	if len(listed) != 1 || len(listed[0].Holders) != 1 || !listed[0].Holders[0].Foreign || listed[0].Token != 0 {
		t.Fatalf("Terraform holds the lock, and we list %+v", listed)
	}
	ref := listed[0].Holders[0].Ref
	if err := store.Break(ctx, name, ref, driver.Break{Mode: driver.BreakGraceful}); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a break that a foreign holder cannot learn of: %v", err)
	}
	if err := store.Break(ctx, name, ref, driver.Break{Mode: driver.BreakForce}); err != nil {
		t.Error(err)
	}

	g := acquire(t, store, mutexClaim(name, time.Minute))
	ok, by, err := theirs.lock(ctx)
	if ok || err != nil || by.ID != g.ID || by.Who != g.Owner || by.Path != bucket+"/terraform/"+name ||
		time.Since(by.Created).Abs() > time.Minute || by.Operation == "" {
		t.Errorf("we hold the lock, and Terraform is told %v, %+v, %v", ok, by, err)
	}
	if err := renew(t, store, g).Err; err != nil {
		t.Error(err)
	}
	if again, err := theirs.read(ctx); err != nil || again != by {
		t.Errorf("a renewal changed what Terraform shows: %+v, %v", again, err)
	}
	release(t, store, g.Claim)
	if ok, _, err := theirs.lock(ctx); !ok {
		t.Errorf("Terraform does not get the lock that we released: %v", err)
	}
	if err := theirs.unlock(ctx, theirs.id); err != nil {
		t.Error(err)
	}

	g = acquire(t, store, mutexClaim(name, time.Minute))
	if err := theirs.unlock(ctx, g.ID); err != nil { // terraform force-unlock
		t.Error(err)
	}
	if ok, _, err := theirs.lock(ctx); !ok {
		t.Fatal(err)
	}
	if err := renew(t, store, g).Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("Terraform has unlocked and taken our lock, and a renewal says %v", err)
	}
	if err := store.Release(ctx, g.Claim, ""); !errors.Is(err, driver.ErrLost) {
		t.Errorf("and a release %v", err)
	}
	if now, err := theirs.read(ctx); err != nil || now.ID != theirs.id {
		t.Errorf("Terraform's lock file is %+v, %v", now, err)
	}
}

// TestLenientDelete: on a service that says of an object which is not there that it was removed, a release of a lock
// that was lost does not succeed, and one of a lock that is held leaves nothing behind, even if a reply is lost.
func TestLenientDelete(t *testing.T) {
	t.Parallel()
	const name = "env/prod.tfstate"
	s := startServer(t)
	s.SetFlaws(s3test.Flaws{DeleteAbsent: true})
	var lose atomic.Int64
	s.Decide = func(r s3test.Request) (f s3test.Fate) {
		if r.Key == "terraform/"+name+".tflock" && r.Kind == s3test.Delete && lose.Add(-1) >= 0 {
			f.DropReply = true
		}
		return f
	}
	store, theirs := mustOpen(t, s, layoutOptions(s3.LayoutTerraform)), newTerraform(t, s)
	g := acquire(t, store, mutexClaim(name, time.Minute))
	if err := theirs.unlock(t.Context(), g.ID); err != nil { // terraform force-unlock, by another one that has gone
		t.Fatal(err)
	}
	if err := store.Release(t.Context(), g.Claim, ""); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Terraform has unlocked our lock, and its release says %v", err)
	}
	for n := range int64(2) {
		g := acquire(t, store, mutexClaim(name, time.Minute))
		lose.Store(n)
		release(t, store, g.Claim)
		if s.Get(bucket, "terraform/"+name+".tflock") != nil {
			t.Error("a released lock has a file")
		}
	}
}

// TestTerraformNames: whatever a name contains, it is the key of the state whose runs it excludes, and whose lock is
// listed.
func TestTerraformNames(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := mustOpen(t, s, layoutOptions(s3.LayoutTerraform))
	long := strings.Repeat("a", 300) + "/x.tfstate"
	for _, name := range []string{"env=prod/x.tfstate", "a//b.tfstate", "a.json/b.tfstate", "./a/../b", "/a/", "a\nb",
		long} {
		theirs := newTerraform(t, s)
		theirs.state = "terraform/" + name
		g := acquire(t, store, mutexClaim(name, time.Minute))
		if ok, by, err := theirs.lock(t.Context()); ok || by.ID != g.ID {
			t.Errorf("we hold %.30q, and Terraform is told %v, %+v, %v", name, ok, by, err)
		}
		release(t, store, g.Claim)
		if ok, _, err := theirs.lock(t.Context()); !ok {
			t.Fatal(err)
		}
		if _, err := store.Acquire(t.Context(), mutexClaim(name, time.Minute)); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("Terraform holds %.30q, and we are told %v", name, err)
		}
		var listed []string
		for l, err := range store.List(t.Context(), name) {
			if err != nil {
				t.Fatal(err)
			}
			listed = append(listed, l.Name)
		}
		if len(listed) != 1 || listed[0] != name {
			t.Errorf("Terraform holds %.30q, and listed is %.100q", name, listed)
		}
	}
}

// TestTerraformLateWrites: a lock is not released while a write may still come that would take it again, and whose
// reply did not say so. If that write takes effect while the release waits, its lock file is removed.
func TestTerraformLateWrites(t *testing.T) {
	t.Parallel()
	const key = "terraform/m.tflock"
	t.Run("granted by the next write", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		late, handled := make(chan struct{}), make(chan struct{})
		var writes atomic.Int64
		var removed atomic.Pointer[time.Time]
		s.Decide = func(r s3test.Request) (f s3test.Fate) {
			switch now := time.Now(); {
			case r.Key != key:
			case r.Kind == s3test.Delete:
				removed.Store(&now)
			case r.Kind == s3test.Write && writes.Add(1) == 1:
				f = s3test.Fate{RefuseStatus: 500, Late: late, Handled: func() { close(handled) }}
			}
			return f
		}
		store := mustOpen(t, s, layoutOptions(s3.LayoutTerraform))
		began := time.Now()
		g := acquire(t, store, mutexClaim("m", time.Minute))
		close(late)
		<-handled // and was refused
		release(t, store, g.Claim)
		if d := removed.Load().Sub(began); d < maxLateness {
			t.Errorf("the lock was released %v after a write that can come for %v", d, maxLateness)
		}
	})
	t.Run("the caller gives up", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		late, handled := make(chan struct{}), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		var writes atomic.Int64
		s.Decide = func(r s3test.Request) (f s3test.Fate) {
			switch {
			case r.Key != key:
			case r.Kind == s3test.Write && writes.Add(1) == 1:
				cancel()
				f = s3test.Fate{RefuseStatus: 500, Late: late, Handled: func() { close(handled) }}
				time.AfterFunc(maxLateness/5, func() { close(late) }) // the release has found nothing by then
			}
			return f
		}
		store := mustOpen(t, s, layoutOptions(s3.LayoutTerraform))
		c := mutexClaim("m", time.Minute)
		if _, err := store.Acquire(ctx, c); !errors.Is(err, driver.ErrUncertain) {
			t.Errorf("a claim that was canceled: %v", err)
		}
		err := store.Release(t.Context(), c, "")
		<-handled
		if s.Get(bucket, key) != nil {
			t.Errorf("the lock was released (%v), and its file is there", err)
		}
	})
}

// TestFreeLooksAgain: no lock counts as released whose lock file was made after the caller had looked.
func TestFreeLooksAgain(t *testing.T) {
	t.Parallel()
	client := newClient(t, startServer(t).URL)
	table, err := s3.NewTerraformTable(t.Context(), client, bucket, layoutOptions(s3.LayoutTerraform))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	storetest.FreeLooksAgain(t, table)
}

// TestTerraformForeignAge: the file of a dead Terraform is taken over when it is old enough by the service's clock, and
// not before.
func TestTerraformForeignAge(t *testing.T) {
	t.Parallel()
	const age = 10 * time.Minute
	s := startServer(t)
	opts := layoutOptions(s3.LayoutTerraform)
	opts.ForeignAge = age
	if ok, _, err := newTerraform(t, s).lock(t.Context()); !ok {
		t.Fatal(err)
	}
	for _, step := range []struct {
		later time.Duration
		free  bool
	}{{age - time.Minute, false}, {age + time.Minute, true}} {
		s.Shift(step.later)
		_, err := mustOpen(t, s, opts).Acquire(t.Context(), mutexClaim("env/prod.tfstate", time.Minute))
		if free := err == nil; free != step.free {
			t.Errorf("after %v: %v", step.later, err)
		}
	}
}

// TestTokensSettle: nothing remains of a lock that was released at once, and the next client, which knows the service's
// clock better, has a larger token nevertheless.
func TestTokensSettle(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	openAt := func(phase time.Duration) driver.Store { // of the service's second, by which its Date is cut
		time.Sleep((phase - time.Duration(time.Now().Nanosecond()) + time.Second) % time.Second)
		return mustOpen(t, s, layoutOptions(s3.LayoutTerraform))
	}
	mustOpen(t, s, nil) // it tries the service
	mustOpen(t, s, layoutOptions(s3.LayoutTerraform))
	knows := openAt(850 * time.Millisecond)
	guesses := openAt(50 * time.Millisecond)
	first := acquire(t, guesses, mutexClaim("m", time.Minute))
	release(t, guesses, first.Claim)
	second := acquire(t, knows, mutexClaim("m", time.Minute))
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	release(t, knows, second.Claim)
}

// TestTokensSettleAfterSlowReplies: a token that is far ahead, because replies took for long when it was drawn, is
// waited for as well.
func TestTokensSettleAfterSlowReplies(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var slow atomic.Bool
	s.Decide = func(r s3test.Request) (f s3test.Fate) {
		if slow.Load() && (r.Kind != s3test.Write || r.Key != "terraform/m.tflock") {
			time.Sleep(4200 * time.Millisecond) // on the way; a reply may take almost a second more
		}
		return f
	}
	mustOpen(t, s, nil) // it tries the service
	knows := mustOpen(t, s, layoutOptions(s3.LayoutTerraform))
	slow.Store(true)
	guesses := mustOpen(t, s, layoutOptions(s3.LayoutTerraform))
	claim := mutexClaim("m", time.Minute)
	first, err := guesses.Acquire(t.Context(), claim)
	for err != nil && !driverutil.IsFinal(err) { // on a busy machine a reply takes longer
		first, err = guesses.Acquire(t.Context(), claim)
	}
	if err != nil {
		t.Fatal(err)
	}
	slow.Store(false)
	release(t, guesses, first.Claim)
	second := acquire(t, knows, mutexClaim("m", time.Minute))
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	release(t, knows, second.Claim)
}
