// Command scale shows how the costs of Holdfast grow with the numbers of leases, waiters and clients: each is measured
// at 1, 10 and 100 times a number, on servers of its own. Leases, waiters and clients are in processes of their own,
// so what is measured is theirs alone.
//
//   - held: one process holds leases, each on a lock of its own. Measured are the memory of each, the goroutines of the
//     process, and the requests while nothing but time passes.
//   - waiters: 20 processes, each with one client, wait for one lock.
//   - clients: so many clients wait for one lock, each with connections of its own, in 10 processes.
//   - cycles: one client takes one lock and releases it, again and again. Measured is whether that takes longer the
//     more often it was done.
//
// While all waiters wait, the memory of each and the requests are measured. Then each gets the lock in turn, releases
// it at once, and leaves; that is repeated. The gap is the time from one holder to the next.
//
// The last line of a table has the figures of all sizes in each cell, for the tables in figures/performance.md.
//
//	go run . -store redis
//	go run . -store etcd,consul -parts cycles
//	go run . -store etcd,zookeeper -parts held -leases 1000,10000
//	go run . -url postgres://user@host/database
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	_ "github.com/holdfast-go/holdfast/cmd/holdfast/stores"
	_ "github.com/holdfast-go/holdfast/store/memory"
)

var (
	names     = flag.String("store", "", "the stores to measure, on servers of this program, separated by commas")
	address   = flag.String("url", "", "measure a store of yours instead; requests are not counted")
	parts     = flag.String("parts", "held,waiters,clients", "what to measure, of held, waiters, clients and cycles")
	leases    = flag.String("leases", "1000,10000,100000", "how many leases are held, each number in turn")
	waiters   = flag.String("waiters", "100,1000,10000", "how many waiters there are, each number in turn")
	clients   = flag.String("clients", "10,100,1000", "how many clients there are, each number in turn")
	cycles    = flag.String("cycles", "1000,10000,30000", "how often a lock is taken, each number in turn")
	locks     = flag.String("locks", "plain,fair", "which mutexes are waited for")
	limit     = flag.Duration("limit", 10*time.Minute, "how long leases are taken; then those that there are count")
	intervals = flag.Int("intervals", 1, "how many renewals of each held lease are measured")
	renewals  = flag.Int("max-renewals", 0, "how many renewals per second are due at most, by the choice of the TTL;\n"+
		"0: as many as is known to suit the store")
	idle    = flag.Duration("idle", 3*time.Second, "how long requests are counted while all wait and the lock is held")
	forTime = flag.Duration("for", 4*time.Second, "how long hand-overs are measured")
)

const (
	waiterProcesses = 20
	clientProcesses = 10
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		exit(runWorker())
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := measureAll(ctx)
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func measureAll(ctx context.Context) error {
	chosen, err := chooseStores()
	if err != nil {
		return err
	}
	for _, s := range chosen {
		fmt.Printf("## %s: %s\n", s.name, s.about)
		if s.requests != "" {
			fmt.Printf("A request is %s.\n", s.requests)
		}
		for part := range strings.SplitSeq(*parts, ",") {
			measure, ok := map[string]func(context.Context, store) error{
				"held": measureHeld, "waiters": measureWaiters, "clients": measureClients, "cycles": measureCycles}[part]
			if !ok {
				return fmt.Errorf("there is no part %q: the parts are held, waiters, clients and cycles", part)
			}
			if err := measure(ctx, s); err != nil {
				return fmt.Errorf("%s: %s: %w", s.name, part, err)
			}
		}
	}
	return nil
}

// chooseStores returns the stores that the flags name.
func chooseStores() (chosen []store, err error) {
	if *address != "" {
		return []store{{name: "url", about: "a store of yours", maxRenewals: 1000, isForeign: true,
			start: func(context.Context) (*server, error) { return &server{url: *address, stop: func() {}}, nil }}}, nil
	}
	var known []string
	for _, s := range stores {
		known = append(known, s.name)
	}
	for name := range strings.SplitSeq(*names, ",") {
		i := slices.Index(known, name)
		if i < 0 {
			return nil, fmt.Errorf("there is no store %q: -store takes %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, stores[i])
	}
	return chosen, nil
}

// forSizes measures each of the sizes on servers of its own. When one cannot be measured, it says why, and leaves out
// the larger ones.
func forSizes(ctx context.Context, s store, sizes string, measure func(n int, at *server) error) error {
	for text := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no number of 1 or more", text)
		}
		at, err := s.start(ctx)
		if err != nil {
			return err
		}
		err = measure(n, at)
		at.stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			fmt.Printf("not measured: %d: %v\n", n, err)
			return nil
		}
	}
	return nil
}

// sleep waits, or returns an error when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return errors.New("interrupted")
	}
}
