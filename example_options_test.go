package holdfast_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/holdfast-go/holdfast"
)

// OnEvent learns what happens to the locks of a client. Close waits until it has been called for all events.
func ExampleOptions() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://events", &holdfast.Options{
		OnEvent: func(e holdfast.Event) {
			switch e.Kind {
			case holdfast.EventAcquired, holdfast.EventReleased, holdfast.EventLost:
				fmt.Println(e.Kind, e.Lock)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	err = client.Do(ctx, "nightly", func(context.Context, *holdfast.Lease) error { return nil })
	fmt.Println(errors.Join(err, client.Close()))
	// Output:
	// lock_acquired nightly
	// lock_released nightly
	// <nil>
}

// A function that locks, and that may be called by one that has locked already, enters the lock again.
func ExampleLockOptions_reentrant() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://reentrant", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	account := client.Mutex("account:7", &holdfast.LockOptions{Reentrant: true})
	book := func(ctx context.Context) error {
		return account.Do(ctx, func(context.Context, *holdfast.Lease) error {
			fmt.Println("booked")
			return nil
		})
	}
	err = account.Do(ctx, func(ctx context.Context, _ *holdfast.Lease) error {
		return book(ctx) // the context carries the lease: without it, book would wait forever
	})
	fmt.Println(err)
	// Output:
	// booked
	// <nil>
}

// A job that is done in no time would be run again by the next machine whose clock is a second behind.
func ExampleLockOptions_minHold() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://min-hold", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	for range 2 { // two machines
		hourly := client.Mutex("hourly", &holdfast.LockOptions{MinHold: 10 * time.Minute})
		lease, err := hourly.TryLock(ctx)
		if errors.Is(err, holdfast.ErrHeld) {
			fmt.Println("skipped")
			continue
		} else if err != nil {
			log.Fatal(err)
		}
		fmt.Println("done")
		if err := lease.Release(); err != nil { // keeps the lock for the rest of the ten minutes
			log.Fatal(err)
		}
	}
	// Output:
	// done
	// skipped
}

// An operator takes a lock away. A graceful break lets the holder stop first; "" means the only holder.
func ExampleClient_Break() {
	ctx := context.Background()
	worker, err := holdfast.Open(ctx, "memory://break", &holdfast.Options{TTL: 3 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()
	operator, err := holdfast.Open(ctx, "memory://break", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer operator.Close()

	lease, err := worker.Mutex("nightly", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := operator.Break(ctx, "nightly", "", holdfast.BreakGraceful, ""); err != nil {
		log.Fatal(err)
	}
	<-lease.Context().Done() // the worker learns of it by its next renewal, and stops
	var loss *holdfast.LossError
	fmt.Println(errors.As(context.Cause(lease.Context()), &loss) && loss.Cause == holdfast.LossBroken)
	_ = lease.Release() // the work has stopped: others may have the lock now

	next, err := operator.Mutex("nightly", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(next.Token() > lease.Token(), next.Release())
	// Output:
	// true
	// true <nil>
}

// A holder that can stop at any time lets others ask for the lock.
func ExampleClient_RequestRelease() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://request", &holdfast.Options{TTL: 3 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lease, err := client.Mutex("reindex", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := client.RequestRelease(ctx, "reindex", ""); err != nil { // by any other client
		log.Fatal(err)
	}
	select {
	case <-lease.ReleaseRequested():
		fmt.Println("asked to release; the lease is still valid:", lease.Valid())
	case <-lease.Context().Done():
		fmt.Println("lost")
	}
	fmt.Println(lease.Release())
	// Output:
	// asked to release; the lease is still valid: true
	// <nil>
}

// A detached claim outlives its process. Its handle is plain data: with it, another process renews and releases it.
func ExampleHandle() {
	ctx := context.Background()
	first, err := holdfast.Open(ctx, "memory://deployments", nil)
	if err != nil {
		log.Fatal(err)
	}
	deploy := &holdfast.LockOptions{TTL: 10 * time.Minute} // nobody renews it: long enough for a step of the work
	lease, err := first.Mutex("deploy", deploy).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	handle, err := lease.Detach()
	if err != nil {
		log.Fatal(err)
	}
	text, err := json.Marshal(handle) // to be kept as a secret: anyone who has it can release the lock
	if err != nil {
		log.Fatal(err)
	}
	_ = first.Close() // which leaves a detached claim alone

	second, err := holdfast.Open(ctx, "memory://deployments", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close()
	var received holdfast.Handle
	if err := json.Unmarshal(text, &received); err != nil {
		log.Fatal(err)
	}
	fmt.Println(second.Renew(ctx, received))
	fmt.Println(second.Release(ctx, received))
	// Output:
	// 10m0s <nil>
	// <nil>
}

// Inspect shows who holds a lock and who waits for it.
func ExampleClient_Inspect() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://inspect", &holdfast.Options{Owner: "worker 7"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lease, err := client.Mutex("nightly", &holdfast.LockOptions{Meta: "report for May"}).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	lock, err := client.Inspect(ctx, "nightly")
	if err != nil {
		log.Fatal(err)
	}
	for _, holder := range lock.Holders {
		fmt.Println(lock.Name, "is held by", holder.Owner, "for", holder.Meta, holder.Token == lease.Token())
	}
	// Output:
	// nightly is held by worker 7 for report for May true
}

// The reader of a read-write lock becomes its writer, if it is the only one, without releasing the lock.
func ExampleLease_TryUpgrade() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://upgrade", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	reader, err := client.RWMutex("config", nil).RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reader.Exclusive(), reader.TryUpgrade(ctx), reader.Exclusive())
	fmt.Println(reader.Release())
	// Output:
	// false <nil> true
	// <nil>
}
