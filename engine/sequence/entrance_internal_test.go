package sequence

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// endedContext has ended. When it is asked whether it has, it first calls a function.
type endedContext struct {
	context.Context
	before func()
}

func (c endedContext) Done() <-chan struct{} {
	c.before()
	return c.Context.Done()
}

// TestGivenUpWhenLetIn: a claim that is given up in the moment in which it is let in does not join, and keeps no other
// one out. It sees first that it was let in or that it was given up, as the select statement chooses, so there are many
// of them.
func TestGivenUpWhenLetIn(t *testing.T) {
	t.Parallel()
	e := &Engine{entrances: map[string]*entrance{}, life: driverutil.NewLifetime(), clock: driver.SystemClock}
	newAcquisition := func(ctx context.Context) *acquisition {
		return &acquisition{retryLoop: &retryLoop{e: e, ctx: ctx}, cl: &claim{session: &session{}}}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		joining := newAcquisition(t.Context())
		for range minJoining {
			if _, err := joining.enter(); err != nil {
				t.Fatal(err)
			}
		}
		given := newAcquisition(endedContext{ended, func() { joining.leaveEntrance(0, nil) }})
		if _, err := given.enter(); !errors.Is(err, context.Canceled) {
			t.Fatalf("a claim that was given up joins: %v", err)
		}
		for range minJoining - 1 {
			joining.leaveEntrance(0, nil)
		}
		if at := e.entrances[""]; at != nil {
			t.Fatalf("%d claims are joining", at.joining)
		}
	}
}
