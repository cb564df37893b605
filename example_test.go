package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

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
	for _, l := range leases.Leases() {
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
	client, err := holdfast.Open(ctx, "memory://reminders", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lease, err := client.Mutex("mail to 42", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	handle, err := lease.Detach() // no other process mails to 42 for the TTL of 30 s ...
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.Mutex("mail to 42", nil).TryLock(ctx)
	fmt.Println(errors.Is(err, holdfast.ErrHeld))
	fmt.Println(client.Release(ctx, handle)) // ... unless a process with the handle releases the lock
	// Output:
	// true
	// <nil>
}

func ExampleRWMutex() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://rwmutex", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	config := client.RWMutex("config", nil)
	reader, err := config.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	other, err := config.RLock(ctx) // readers hold the lock together
	if err != nil {
		log.Fatal(err)
	}
	_, err = config.TryLock(ctx) // a writer needs it alone
	fmt.Println(errors.Is(err, holdfast.ErrHeld))
	fmt.Println(reader.Release(), other.Release())
	// Output:
	// true
	// <nil> <nil>
}

func ExampleSemaphore() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://semaphore", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	reports := client.Semaphore("reports", 3, nil) // three permits, in all processes together
	large, err := reports.Acquire(ctx, 2)
	if err != nil {
		log.Fatal(err)
	}
	defer large.Release()
	_, err = reports.TryAcquire(ctx, 2)
	fmt.Println("two more:", errors.Is(err, holdfast.ErrHeld))
	small, err := reports.TryAcquire(ctx, 1)
	fmt.Println("one more:", err)
	defer small.Release()
	// Output:
	// two more: true
	// one more: <nil>
}

// The context of a lease ends when the lease is lost, and its cause is the loss. Here an operator breaks the lock.
func ExampleLease_Context() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://loss", &holdfast.Options{TTL: 3 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lease, err := client.Mutex("nightly", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := client.Break(ctx, "nightly", lease.Ref(), holdfast.BreakForce, ""); err != nil {
		log.Fatal(err)
	}
	<-lease.Context().Done() // stop the work now: another client may hold the lock
	var loss *holdfast.LossError
	if errors.As(context.Cause(lease.Context()), &loss) {
		fmt.Println(loss.Cause)
	}
	fmt.Println(lease.Valid(), errors.Is(lease.Release(), holdfast.ErrLost))
	// Output:
	// broken
	// false true
}

// A resource that keeps the largest token that it has seen rejects the writes of a holder that was replaced.
func ExampleLease_Token() {
	var largest int64 // kept by the resource, with its data
	write := func(token int64, text string) error {
		if token < largest {
			return errors.New("rejected: the lock has a newer holder")
		}
		largest = token
		fmt.Println("written:", text)
		return nil
	}

	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://token", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	first, err := client.Mutex("report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_ = first.Release() // or it is lost, while its process is frozen
	second, err := client.Mutex("report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer second.Release()
	fmt.Println(write(second.Token(), "second"))
	fmt.Println(write(first.Token(), "first"))
	// Output:
	// written: second
	// <nil>
	// rejected: the lock has a newer holder
}

// Watch shows each change of a lock, beginning with its present state.
func ExampleClient_Watch() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://watch", &holdfast.Options{Owner: "worker 7"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lease, err := client.Mutex("nightly", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for lock, err := range client.Watch(ctx, "nightly") {
		if err != nil {
			log.Fatal(err)
		}
		if len(lock.Holders) == 0 {
			fmt.Println("free")
			break
		}
		fmt.Println("held by", lock.Holders[0].Owner)
		if err := lease.Release(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// held by worker 7
	// free
}

// A message that is delivered twice is handled once.
func ExampleLedger_Do() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://payments", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	payments := client.Ledger("payments", nil)
	for range 2 {
		receipt, err := payments.Do(ctx, "order-1001", nil,
			func(ctx context.Context, run *holdfast.Run) ([]byte, error) {
				fmt.Println("taking the payment, attempt", run.Attempt())
				return []byte("receipt 7"), nil // under run.Token(), where the payment service checks it
			})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(receipt))
	}
	// Output:
	// taking the payment, attempt 1
	// receipt 7
	// receipt 7
}
