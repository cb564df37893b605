package drivertest_test

import (
	"context"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// The suite needs no more than a way to open clients of one store. Here the store is the one in memory.
func ExampleRun() {
	server := memory.New(nil)
	harness := drivertest.Harness{
		Open: func(ctx context.Context) (driver.Store, error) { return server.Open(), nil },
		// Lossy, Kill, Cut, Heal and Restart let more cases run. Without them the suite says what it skips.
	}
	quick := []string{"mutex-contended", "token-rises", "release-grants-next"}
	results := drivertest.Run(context.Background(), harness, &drivertest.Options{
		// A store's own test leaves Match out, and so runs all cases.
		Match: func(c drivertest.Case) bool { return slices.Contains(quick, c.Name) },
	})
	for _, r := range results {
		switch {
		case r.Err != nil: // in a store's test this is passed to t.Errorf
			fmt.Printf("%s: broken: %v\npromised: %s\n", r.Case.Name, r.Err, r.Case.Promise)
		case r.Skipped != "":
			fmt.Printf("%s: skipped: %s\n", r.Case.Name, r.Skipped)
		default:
			fmt.Printf("%s: kept\n", r.Case.Name)
		}
	}
	// Output:
	// mutex-contended: kept
	// token-rises: kept
	// release-grants-next: kept
}
