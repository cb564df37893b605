package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/memory"
)

func TestWatchYieldsEachStateThatLasts(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(memory.New(nil).Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var lease *holdfast.Lease
	states := 0
	for lock, err := range client.Watch(ctx, "a") {
		if err != nil {
			if !errors.Is(err, context.Canceled) || states != 3 {
				t.Errorf("after %d states: %v", states, err)
			}
			break
		}
		if want := states % 2; len(lock.Holders) != want {
			t.Fatalf("state %d: want %d holders, got %+v", states, want, lock)
		}
		switch states++; states {
		case 1:
			lease, err = client.Mutex("a", nil).Lock(ctx)
		case 2:
			err = lease.Release()
		case 3:
			cancel()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range client.Watch(context.Background(), "") {
		if !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("a bad name: %v", err)
		}
	}
}

func TestExplainWithoutExplainer(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(memory.New(nil).Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := client.Mutex("a", nil).Explain()
	if err != nil || plan.TTL != holdfast.DefaultTTL || len(plan.Keys) != 0 {
		t.Errorf("%+v, %v", plan, err)
	}
	if _, err := client.Semaphore("a", 1, nil).Permits(2).Explain(); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("too heavy: %v", err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
}
