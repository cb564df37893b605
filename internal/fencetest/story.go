// Package fencetest tells the story of the stale holder to a resource: a holder is stopped, its lease ends, the next
// holder writes, and the first one continues to write.
package fencetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/store/memory"
)

// Stops is how many holders each story stops.
var Stops = flag.Int("stops", 40, "how many holders are stopped per resource")

// Write writes a value to a resource under a token. It calls reached before each of its steps, in which the writer may
// be stopped: before it begins, after it has checked its token, and before it commits, as far as there are such steps.
// fenced is false if the token is not to be checked.
type Write func(ctx context.Context, token fence.Token, value string, reached func(), fenced bool) error

// Resource is what a lock protects.
type Resource struct {
	Write Write
	Read  func(ctx context.Context) (value string, err error)
	// Steps is how often Write calls reached.
	Steps int
}

// Outcome is what became of a story.
type Outcome struct {
	Stops         int
	StaleAccepted int // a stopped holder has written after the next one
	StaleRejected int
	InTime        int // a stopped holder had checked its token before the next one, which had to wait
}

// Tell stops many holders of one resource, at a random step of their write. It fails the test if a stale write is
// accepted or a rightful one is rejected. Then it tells the story again without the fence, a few times, and fails
// unless it sees stale writes: otherwise it could not see them in the first place.
func Tell(t *testing.T, r Resource) {
	t.Helper()
	o := tellStories(t, r, *Stops, true)
	t.Logf("%d stops: %d stale writes rejected, %d accepted; %d writes were in time", o.Stops, o.StaleRejected,
		o.StaleAccepted, o.InTime)
	if o.StaleAccepted > 0 {
		t.Errorf("%d stale writes were accepted", o.StaleAccepted)
	}
	if o.StaleRejected == 0 {
		t.Error("no stale write was rejected")
	}
	if unfenced := tellStories(t, r, 10, false); unfenced.StaleAccepted == 0 {
		t.Errorf("without the fence no stale write was seen: %+v", unfenced)
	} else {
		t.Logf("without the fence: %d stops, %d stale writes accepted", unfenced.Stops, unfenced.StaleAccepted)
	}
}

func tellStories(t *testing.T, r Resource, stops int, fenced bool) (o Outcome) {
	t.Helper()
	store := memory.New(nil)
	var servers [2]*holdfast.Client // of the first holder and of the next one
	for i := range servers {
		var err error
		if servers[i], err = holdfast.New(store.Open(), nil); err != nil {
			t.Fatal(err)
		}
		defer servers[i].Close()
	}
	for o.Stops < stops && !t.Failed() {
		at := 1 + rand.N(r.Steps)
		if !fenced {
			at = 1 // before it begins: what it does afterwards is certainly late
		}
		tellStory(t, r, servers, at, fenced, &o)
	}
	return o
}

// tellStory stops one holder at a step.
func tellStory(t *testing.T, r Resource, servers [2]*holdfast.Client, at int, fenced bool, o *Outcome) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o.Stops++
	first, firstToken := acquireLock(ctx, t, servers[0])
	firstValue, nextValue := fmt.Sprint("first ", o.Stops), fmt.Sprint("next ", o.Stops)
	stopped, goOn := make(chan struct{}), make(chan struct{})
	firstDone := make(chan error, 1)
	go func() {
		steps := 0
		firstDone <- r.Write(ctx, firstToken, firstValue, func() {
			if steps++; steps == at {
				close(stopped)
				<-goOn
			}
		}, fenced)
	}()
	select {
	case <-stopped:
	case err := <-firstDone:
		t.Fatalf("the first holder did not come to step %d: %v", at, err)
	}
	// The first holder is stopped, so its lease ends, and the next one gets the lock.
	if err := servers[1].Break(ctx, "resource", first.Ref(), holdfast.BreakForce, ""); err != nil {
		t.Error(err)
	}
	next, nextToken := acquireLock(ctx, t, servers[1])
	nextDone := make(chan error, 1)
	go func() { nextDone <- r.Write(ctx, nextToken, nextValue, func() {}, fenced) }()
	nextIsLate := false
	select {
	case err := <-nextDone:
		nextDone <- err
	case <-time.After(30 * time.Millisecond): // the first one is in its transaction, and the next one waits for it
		nextIsLate = true
	}
	close(goOn)
	firstErr, nextErr := <-firstDone, <-nextDone
	if nextErr != nil {
		t.Errorf("a rightful write under token %d was rejected: %v", nextToken, nextErr)
	}
	value, err := r.Read(ctx)
	if err != nil {
		t.Error(err)
	}
	switch {
	case value == firstValue:
		o.StaleAccepted++
	case value != nextValue:
		t.Errorf("the resource has %q after %q and %q (%v, %v)", value, firstValue, nextValue, firstErr, nextErr)
	case errors.Is(firstErr, fence.ErrStale):
		o.StaleRejected++
	case firstErr == nil && nextIsLate:
		o.InTime++
	case firstErr == nil:
		t.Errorf("the write of %q was acknowledged, and has left nothing", firstValue)
	default:
		t.Errorf("a stale write was rejected by another error: %v", firstErr)
	}
	if err := first.Release(); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("the release of the first lease: %v", err)
	}
	if err := next.Release(); err != nil {
		t.Error(err)
	}
}

func acquireLock(ctx context.Context, t *testing.T, locks *holdfast.Client) (*holdfast.Lease, fence.Token) {
	t.Helper()
	lease, err := locks.Mutex("resource", nil).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	token, err := fence.Of(lease)
	if err != nil {
		t.Fatal(err)
	}
	return lease, token
}
