package memory_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/memory"
)

// New makes the whole store, as a server would be, and each call of Open makes a client of it.
func ExampleNew() {
	ctx := context.Background()
	memoryStore := memory.New(nil)
	openClient := func(owner string) *holdfast.Client {
		client, err := holdfast.New(memoryStore.Open(), &holdfast.Options{Owner: owner})
		if err != nil {
			log.Fatal(err)
		}
		return client
	}
	first, second := openClient("the first"), openClient("the second")
	defer first.Close()
	defer second.Close()

	lease, err := first.Mutex("nightly-report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	_, err = second.Mutex("nightly-report", nil).TryLock(ctx)
	fmt.Println(errors.Is(err, holdfast.ErrHeld))
	fmt.Println(err)
	// Output:
	// true
	// holdfast: try lock "nightly-report" on memory: the lock is held by the first
}
