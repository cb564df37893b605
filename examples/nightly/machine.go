package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/story"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/store/postgres"
)

const (
	lockName  = "nightly"
	stepCount = 20
	slowStep  = 9           // it depends on an answer from outside
	interval  = time.Second // between two attempts of a machine to run the batch
)

// machine is one of the machines that can run the batch.
type machine struct {
	lock     *holdfast.Mutex
	db       *pgxpool.Pool
	stepTime time.Duration
	answer   chan struct{} // closed when the answer for the slow step is there
	skipped  string        // why the machine has skipped the batch the last time
}

// tryBatch runs the batch, unless it is running elsewhere or finished.
func (m *machine) tryBatch(ctx context.Context) error {
	lease, err := m.lock.TryLock(ctx)
	if held, ok := errors.AsType[*holdfast.HeldError](err); ok {
		where := "elsewhere"
		if len(held.Holders) > 0 {
			where = "at " + held.Holders[0].Owner
		}
		m.skip("it runs " + where)
		return nil
	}
	if err != nil {
		return err
	}
	defer lease.Release() // if it fails, the lock ends by itself
	token, err := fence.Of(lease)
	if err != nil {
		return err
	}
	// The lease is renewed in the background for as long as the batch takes. If it is lost, this context ends.
	return m.runBatch(lease.Context(), token)
}

// skip tells why the machine does not run the batch, once.
func (m *machine) skip(why string) {
	if why != m.skipped {
		story.Say("skips the batch: %s", why)
	}
	m.skipped = why
}

// runBatch does the steps from the checkpoint on.
func (m *machine) runBatch(ctx context.Context, token fence.Token) error {
	done, err := readCheckpoint(ctx, m.db, token)
	switch {
	case err != nil:
		return err
	case done == stepCount:
		m.skip("it is finished")
		return nil
	case done == 0:
		story.Say("begins the batch with token %d", token)
	default:
		story.Say("takes over after step %d, with token %d", done, token)
	}
	for step := done + 1; step <= stepCount; step++ {
		if step == slowStep {
			story.Say("works on step %d, which needs an answer from a supplier", step)
			select {
			case <-m.answer:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		time.Sleep(m.stepTime)
		if err := finishStep(ctx, m.db, token, step); err != nil {
			return err
		}
	}
	story.Say("finished the batch")
	return nil
}

// readCheckpoint returns how many steps are done. It passes the fence first. From then on no earlier holder can write,
// so the checkpoint remains what it is.
func readCheckpoint(ctx context.Context, db *pgxpool.Pool, token fence.Token) (done int, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := postgres.Fence(ctx, tx, nil, lockName, token); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `select done from checkpoint`).Scan(&done)
	})
	return done, err
}

// finishStep writes the result of a step and the checkpoint, in the transaction that checks the token.
func finishStep(ctx context.Context, db *pgxpool.Pool, token fence.Token, step int) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := postgres.Fence(ctx, tx, nil, lockName, token); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `insert into results (step, token) values ($1, $2)`, step, int64(token)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update checkpoint set done = $1`, step)
		return err
	})
}

// runMachine is the main function of a machine. Its scheduler tries to run the batch again and again. It reads one
// line, when the answer for the slow step is there.
func runMachine(ctx context.Context, name string) error {
	ttl, err1 := time.ParseDuration(os.Getenv("TTL"))
	stepTime, err2 := time.ParseDuration(os.Getenv("STEP_TIME"))
	locks, err3 := holdfast.Open(ctx, os.Getenv("DATABASE"), &holdfast.Options{TTL: ttl, Owner: name})
	db, err4 := pgxpool.New(ctx, os.Getenv("DATABASE"))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	m := &machine{lock: locks.Mutex(lockName, nil), db: db, stepTime: stepTime, answer: make(chan struct{})}
	go func() {
		if bufio.NewScanner(os.Stdin).Scan() {
			close(m.answer)
		}
	}()
	for ticks := time.Tick(interval); ; <-ticks {
		if err := m.tryBatch(ctx); err != nil {
			story.Say("stops, and tries again: %v", err)
		}
	}
}
