package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/story"
	"github.com/holdfast-go/holdfast/store/dynamodb"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// ledgerTable is the table of the runs. With this layout it is one ledger, which has the name of the table.
const ledgerTable = "order-events"

// openLocks opens the table of the ledger.
func openLocks(ctx context.Context, endpoint, owner string) (*holdfast.Client, error) {
	store, err := dynamodb.New(ctx, dynamodbtest.Client(endpoint), ledgerTable,
		&dynamodb.Options{Layout: dynamodb.LayoutLedger, Create: true})
	if err != nil {
		return nil, err
	}
	return holdfast.New(store, &holdfast.Options{TTL: ttl, Owner: owner})
}

// worker is a process that handles orders.
type worker struct {
	ledger *holdfast.Ledger
	shop   *shop
	pause  chan struct{} // when a run that was begun may continue
}

// handle is what a worker does with one delivery of an order. It returns what has become of it, in words. begun is
// called when the run has begun.
func (w *worker) handle(ctx context.Context, order string, opts *holdfast.RunOptions, begun func(*holdfast.Run)) (
	outcome string, err error) {
	run, err := w.ledger.Begin(ctx, order, opts)
	refused, _ := errors.AsType[*holdfast.RunError](err)
	switch {
	case errors.Is(err, holdfast.ErrSucceeded):
		return "refused, because it was handled before", nil
	case errors.Is(err, holdfast.ErrInProgress):
		return "refused, because it is in progress at " + refused.Run.Owner, nil
	case err != nil:
		return "", err
	}
	begun(run)
	// Look at the clock before an act that cannot be undone. A worker can be paused after that, too, or its request can
	// be slow. Then it is the token that protects the shop.
	err = errors.New("the worker was paused for longer than its TTL")
	if run.Valid() {
		err = w.shop.sendParcel(run.Context(), order, run)
	}
	outcome = fmt.Sprintf("HANDLED in attempt %d, with token %d", run.Attempt(), run.Token())
	if err == nil {
		err = run.Succeed(ctx, nil)
	} else {
		outcome = fmt.Sprintf("attempt %d fails: %v", run.Attempt(), err)
		err = run.Fail(ctx, err)
	}
	if errors.Is(err, holdfast.ErrLost) { // the run was taken over, or will be: the queue delivers the order again
		outcome, err = fmt.Sprintf("attempt %d: the ledger refuses its report: %v", run.Attempt(), err), nil
	}
	return outcome, err
}

// receive handles deliveries of an order at once.
func (w *worker) receive(ctx context.Context, order string, times int) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	outcomes, errs := map[string]int{}, []error{}
	for range times {
		all.Go(func() {
			outcome, err := w.handle(ctx, order, nil, func(*holdfast.Run) {})
			mu.Lock()
			defer mu.Unlock()
			outcomes[outcome]++
			errs = append(errs, err)
		})
	}
	all.Wait()
	var texts []string
	for _, outcome := range slices.Sorted(maps.Keys(outcomes)) {
		texts = append(texts, fmt.Sprintf("%d x %s", outcomes[outcome], outcome))
	}
	story.Say("%s: %s", order, strings.Join(texts, "; "))
	return errors.Join(errs...)
}

// runWorker is the main function of a worker. It reads these lines: "deliver ORDER=TIMES ..."; "await ORDER", which
// waits while the order is in progress; "begin ORDER", and later "continue".
func runWorker(ctx context.Context, name string) error {
	client, err := openLocks(ctx, os.Getenv("LEDGER"), name)
	if err != nil {
		return err
	}
	w := &worker{client.Ledger(ledgerTable, nil), &shop{dynamodbtest.Client(os.Getenv("SHOP"))}, make(chan struct{}, 1)}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		if verb == "continue" {
			w.pause <- struct{}{}
			continue
		}
		go func() {
			if err := w.do(ctx, verb, rest); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
				os.Exit(1)
			}
			story.Say("done")
		}()
	}
	return client.Close()
}

// do does what a line from the story says.
func (w *worker) do(ctx context.Context, verb, rest string) error {
	if verb == "deliver" {
		var all sync.WaitGroup
		words := strings.Fields(rest)
		errs := make([]error, len(words))
		for i, word := range words {
			order, times, _ := strings.Cut(word, "=")
			n := 0
			if _, err := fmt.Sscan(times, &n); err != nil {
				return err
			}
			all.Go(func() { errs[i] = w.receive(ctx, order, n) })
		}
		all.Wait()
		return errors.Join(errs...)
	}
	begun := func(*holdfast.Run) {}
	if verb == "begin" {
		begun = func(run *holdfast.Run) {
			story.Say("%s: holds the run with token %d, and is about to send the parcel", rest, run.Token())
			<-w.pause
		}
	}
	outcome, err := w.handle(ctx, rest, &holdfast.RunOptions{Wait: verb == "await"}, begun)
	story.Say("%s: %s", rest, outcome)
	return err
}
