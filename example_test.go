package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/store/memory"
)

func Example() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://example", nil) // or file:///var/lib/holdfast, redis://..., etcd://...
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lease, err := client.Mutex("inventory:123", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("working:", lease.Valid(), lease.Token() > 0) // under lease.Context(), which ends if the lock is lost
	if err := lease.Release(); err != nil {
		log.Fatal(err)
	}
	// Output: working: true true
}

func ExampleMutex_TryLock() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://try", &holdfast.Options{Owner: "the first"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lease, err := client.Mutex("nightly", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	_, err = client.Mutex("nightly", nil).TryLock(ctx)
	fmt.Println(errors.Is(err, holdfast.ErrHeld))
	fmt.Println(err)
	// Output:
	// true
	// holdfast: try lock "nightly" on memory: the lock is held by the first
}

func ExampleClient_Do() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://do", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	err = client.Do(ctx, "nightly", func(ctx context.Context, lease *holdfast.Lease) error {
		fmt.Println("alone")
		return nil
	})
	fmt.Println(err)
	// Output:
	// alone
	// <nil>
}

func ExampleElection() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://election", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	election := client.Election("scheduler", &holdfast.LockOptions{Meta: "10.0.0.7:8080"})
	err = election.Run(ctx, func(ctx context.Context, lease *holdfast.Lease) error {
		leader, err := election.Leader(ctx)
		fmt.Println(election.IsLeader(), leader.Meta)
		return err // resigns; after a loss Run would campaign again
	})
	fmt.Println(err, election.IsLeader())
	// Output:
	// true 10.0.0.7:8080
	// <nil> false
}

func ExampleLockAll() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://all", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	from, to := client.Mutex("account:7", nil), client.Mutex("account:3", nil)
	prices := client.RWMutex("prices", nil)
	leases, err := holdfast.LockAll(ctx, from, to, prices.Reader())
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range leases.All() {
		fmt.Println(l.Name(), l.Exclusive())
	}
	if err := leases.Release(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// account:3 true
	// account:7 true
	// prices false
}

func ExampleLease_Detach() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://lapse", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lease, err := client.Mutex("mail to 42", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	handle, err := lease.Detach() // nobody mails to 42 again for the TTL of 30 s ...
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.Mutex("mail to 42", nil).TryLock(ctx)
	fmt.Println(errors.Is(err, holdfast.ErrHeld))
	fmt.Println(client.Release(ctx, handle)) // ... unless whoever has the handle gives the lock back
	// Output:
	// true
	// <nil>
}
