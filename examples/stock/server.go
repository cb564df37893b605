package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/story"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/store/postgres"
	_ "github.com/holdfast-go/holdfast/store/redis"
)

const (
	lockName = "stock/shoe"
	// leaseTTL is two to three times as long as the longest sale, so that a slow sale loses no lease, and the lock of a
	// server that has died is not held for long.
	leaseTTL = 20 * time.Second
	// lockWait bounds one attempt to get the lock.
	lockWait = 10 * time.Second
	// workTime is how long a sale takes as a rule.
	workTime = 10 * time.Millisecond
)

// The first wait after a failure, and the longest.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// The steps of a sale at which the story can let a server wait.
const (
	holdsLock = "holds the lock"
	hasRead   = "has read the stock"
	noPause   = ""
)

// server is one of the servers of the shop.
type server struct {
	lock   *holdfast.Mutex
	db     *pgxpool.Pool
	resume chan struct{} // has one value when the sale that waits may go on
}

// sale is what has become of an order.
type sale struct {
	order   string
	sold    bool // false: sold out
	repeats int  // attempts that failed
}

// sell sells a pair. It repeats what fails, and waits longer and longer between the attempts, and not as long as other
// servers do: if all came back at once, they would be in each other's way again.
func (s *server) sell(ctx context.Context, order, pause string) (done sale, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	done = sale{order: order}
	// atStep lets the server wait for the story, once.
	atStep := func(step string, token fence.Token) {
		if step == pause {
			pause = noPause
			story.Say("%s with token %d, and is slow", step, token)
			<-s.resume
		}
	}
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		if done.sold, err = s.trySale(ctx, order, atStep); err == nil {
			return done, nil
		}
		if stale, ok := errors.AsType[*fence.StaleError](err); ok {
			story.Say("rejected: order %s with token %d, since the stock has seen token %d", order, stale.Token,
				stale.Largest)
		}
		done.repeats++
		select {
		case <-time.After(backoff/2 + rand.N(backoff)):
		case <-ctx.Done():
			return done, fmt.Errorf("order %s: %w", order, err)
		}
	}
}

// trySale makes one attempt. If it fails, nothing was sold, or that is not known; then the next attempt finds out.
func (s *server) trySale(ctx context.Context, order string, atStep func(string, fence.Token)) (sold bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, lockWait)
	lease, err := s.lock.Lock(waiting)
	cancel()
	if err != nil {
		return false, err
	}
	defer lease.Release() // if it fails, the lock ends by itself
	token, err := fence.Of(lease)
	if err != nil {
		return false, err
	}
	atStep(holdsLock, token)
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		// The first guard rejects a server that has lost the lock and does not know it.
		if err := postgres.Fence(ctx, tx, nil, lockName, token); err != nil {
			return err
		}
		// The second guard makes those wait that change the stock without the lock.
		var pairs int
		if err := tx.QueryRow(ctx, `select pairs from stock where item = 'shoe' for update`).Scan(&pairs); err != nil {
			return err
		}
		atStep(hasRead, token)
		// An earlier attempt may have sold the pair, if the reply to its commit was lost.
		err := tx.QueryRow(ctx, `select exists (select from sales where id = $1)`, order).Scan(&sold)
		if err != nil || sold || pairs == 0 {
			return err
		}
		time.Sleep(workTime)
		if _, err = tx.Exec(ctx, `update stock set pairs = $1 where item = 'shoe'`, pairs-1); err != nil {
			return err
		}
		sold = true
		_, err = tx.Exec(ctx, `insert into sales (id, token, pairs_left) values ($1, $2, $3)`, order, int64(token),
			pairs-1)
		return err
	})
	return sold, err
}

// runServer is the main function of a server. It reads these lines: "sell ORDER ..." sells them at once; "hold ORDER"
// and "read ORDER" sell one, and wait for the line "continue" when the server has the lock, or has read the stock.
func runServer(ctx context.Context, name string) error {
	locks, err := holdfast.Open(ctx, os.Getenv("LOCKS"), &holdfast.Options{TTL: leaseTTL, Owner: name})
	if err != nil {
		return err
	}
	defer locks.Close()
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE"))
	if err != nil {
		return err
	}
	defer db.Close()
	s := &server{locks.Mutex(lockName, nil), db, make(chan struct{}, 1)}
	pauses := map[string]string{"sell": noPause, "hold": holdsLock, "read": hasRead}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		if verb == "continue" {
			s.resume <- struct{}{}
			continue
		}
		go func() {
			if err := s.sellAll(ctx, strings.Fields(rest), pauses[verb]); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
				os.Exit(1)
			}
		}()
	}
	return nil
}

// sellAll handles several orders at once, and says which were sold.
func (s *server) sellAll(ctx context.Context, orders []string, pause string) error {
	var all sync.WaitGroup
	done, errs := make([]sale, len(orders)), make([]error, len(orders))
	for i, order := range orders {
		all.Go(func() { done[i], errs[i] = s.sell(ctx, order, pause) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var sold, soldOut []string
	repeats := 0
	for _, d := range done {
		if d.sold {
			sold = append(sold, d.order)
		} else {
			soldOut = append(soldOut, d.order)
		}
		repeats += d.repeats
	}
	story.Say("done: sold [%s], sold out for [%s]; attempts repeated: %d",
		strings.Join(sold, " "), strings.Join(soldOut, " "), repeats)
	return nil
}
