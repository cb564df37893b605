package file_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/file"
)

// All programs of one user and machine that open the same directory share its locks.
func ExampleNew() {
	temporary, err := os.MkdirTemp("", "example") // a real program uses a directory such as /var/lib/holdfast
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(temporary)
	dir := filepath.Join(temporary, "locks") // the first claim makes it

	ctx := context.Background()
	openClient := func(owner string) *holdfast.Client {
		store, err := file.New(ctx, dir, nil)
		if err != nil {
			log.Fatal(err)
		}
		client, err := holdfast.New(store, &holdfast.Options{Owner: owner})
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
	_, err = second.Mutex("nightly-report", nil).TryLock(ctx)
	fmt.Println("held:", errors.Is(err, holdfast.ErrHeld))
	if err := lease.Release(); err != nil {
		log.Fatal(err)
	}
	next, err := second.Mutex("nightly-report", nil).TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the token rises:", next.Token() > lease.Token())
	if err := next.Release(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// held: true
	// the token rises: true
}
