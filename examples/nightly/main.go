// Nightly runs a batch on one of three machines. All of them try to run it, and skip it if it runs elsewhere. The
// machine that runs it is killed halfway. Another one takes over within 30 s, and resumes after the last step that was
// done, under a larger fencing token. A late write of the first machine is rejected. The locks and the results are in
// PostgreSQL.
//
// Run it with: go run ./examples/nightly
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/database"
	"github.com/holdfast-go/holdfast/examples/internal/story"
	"github.com/holdfast-go/holdfast/fence"
)

// takeoverLimit is how long the batch may rest after its machine has died.
const takeoverLimit = 30 * time.Second

// form is how long the story is.
type form struct {
	ttl      time.Duration // the batch rests for about that long after its machine has died
	stepTime time.Duration
	slowTime time.Duration // how long the slow step takes until the machine is killed
}

var (
	// In the long form the slow step takes longer than the TTL.
	longForm  = form{ttl: 10 * time.Second, stepTime: 300 * time.Millisecond, slowTime: 12 * time.Second}
	shortForm = form{ttl: 8 * time.Second, stepTime: 10 * time.Millisecond}
)

func main() {
	story.Main(func(out io.Writer) error { return tellStory(out, longForm) }, runMachine)
}

// night is what the story needs to know.
type night struct {
	*story.Story
	form     form
	db       *pgxpool.Pool
	locks    *holdfast.Client
	machines [3]*story.Actor
	first    fence.Token // of the machine that is killed
}

// tellStory starts PostgreSQL and three machines, and tells what happens.
func tellStory(out io.Writer, f form) error {
	n := &night{Story: story.New(out, "Nightly: a batch that another machine resumes"), form: f}
	defer n.End()
	ctx := context.Background()
	databaseURL, db, err := database.Start(ctx, n.Story, `
		create table checkpoint (done int);
		create table results (step int, token bigint);
		insert into checkpoint values (0)`)
	if err != nil {
		return err
	}
	n.db = db
	if n.locks, err = holdfast.Open(ctx, databaseURL, nil); err != nil {
		return err
	}
	n.AtEnd(func() { _ = n.locks.Close() })
	n.Tell("PostgreSQL runs. The batch of tonight has %d steps", stepCount)
	env := []string{"DATABASE=" + databaseURL, "TTL=" + f.ttl.String(), "STEP_TIME=" + f.stepTime.String()}
	for i := range n.machines {
		name := fmt.Sprint("machine ", i+1)
		if n.machines[i], err = n.Start(name, name, env...); err != nil {
			return err
		}
		expected := "skips the batch: it runs at machine 1"
		if i == 0 {
			expected = "begins the batch"
		}
		if _, err := n.machines[i].Hear(expected); err != nil {
			return err
		}
	}
	for _, scene := range []func(context.Context) error{n.killMachine, n.writeLate, n.check} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return nil
}

// killMachine kills machine 1 halfway, and waits until another one has resumed the batch.
func (n *night) killMachine(ctx context.Context) error {
	first, others := n.machines[0], n.machines[1:]
	if _, err := first.Hear("works on step"); err != nil {
		return err
	}
	if n.form.slowTime > 0 {
		n.Tell("step %d takes longer than the TTL of %v. Machine 1 renews its lease meanwhile", slowStep, n.form.ttl)
		time.Sleep(n.form.slowTime)
	}
	lock, err := n.locks.Inspect(ctx, lockName)
	if err != nil {
		return err
	}
	if len(lock.Holders) != 1 || lock.Holders[0].Owner != first.Name {
		return fmt.Errorf("machine 1 does not hold the lock any more: %+v", lock.Holders)
	}
	n.first = fence.Token(lock.Holders[0].Token)
	n.Tell("machine 1 holds the lock, and is killed in step %d", slowStep)
	first.Kill()
	start := time.Now()
	next, _, err := story.HearAny("takes over after step", others...)
	if err != nil {
		return err
	}
	took := time.Since(start)
	n.Tell("%s has taken over after %.1f s", next.Name, took.Seconds())
	if took > takeoverLimit {
		return fmt.Errorf("the takeover lasted longer than %v", takeoverLimit)
	}
	return nil
}

// writeLate sends what machine 1 could have sent just before it was killed, and what the network has delayed. The new
// holder has not written yet.
func (n *night) writeLate(ctx context.Context) error {
	err := finishStep(ctx, n.db, n.first, slowStep)
	stale, ok := errors.AsType[*fence.StaleError](err)
	if !ok {
		return fmt.Errorf("a late write of machine 1 was not rejected: %v", err)
	}
	n.Tell("a late write of machine 1, with token %d, is rejected, since PostgreSQL has seen token %d", stale.Token,
		stale.Largest)
	return nil
}

// check waits for the end of the batch, and checks that each step was done once, and by one machine after the other.
func (n *night) check(ctx context.Context) error {
	others := n.machines[1:]
	n.Tell("the supplier answers")
	for _, m := range others {
		if err := m.Order("the answer"); err != nil {
			return err
		}
	}
	last, _, err := story.HearAny("finished", others...)
	if err != nil {
		return err
	}
	for _, m := range others {
		if m != last {
			if _, err := m.Hear("skips the batch: it is finished"); err != nil {
				return err
			}
		}
	}
	rows, err := n.db.Query(ctx, `select step, token from results order by step, token`)
	if err != nil {
		return err
	}
	type result struct {
		Step  int
		Token fence.Token
	}
	results, err := pgx.CollectRows(rows, pgx.RowToStructByPos[result])
	if err != nil {
		return err
	}
	var parts []string
	for i, r := range results {
		if r.Step != i+1 || i > 0 && r.Token < results[i-1].Token {
			return fmt.Errorf("a step was lost, done twice, or done by an older token: %v", results)
		}
		if i == 0 || r.Token != results[i-1].Token {
			parts = append(parts, fmt.Sprintf("from step %d with token %d", r.Step, r.Token))
		}
	}
	if len(results) != stepCount || len(parts) < 2 {
		return fmt.Errorf("the batch is not complete: %v", results)
	}
	n.Tell("all %d steps were done once: %s", len(results), strings.Join(parts, ", "))
	return nil
}
