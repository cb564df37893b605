// Event-worker handles the orders of a shop. They come from a queue, which delivers each of them several times, at once
// and again in a replay. A run ledger in DynamoDB decides who handles an order, and each order is handled once. One
// worker is killed halfway, while its write is on the way, and another one is stopped. Others handle these orders, and
// nothing arrives of what the first two do late.
//
// Run it with: go run ./examples/event-worker
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/story"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// ttl is how long an order stays with a worker that has died. It is short, so that the example is, but longer than the
// pauses of a busy machine.
const ttl = 8 * time.Second

// The orders of the day. The queue delivers the first one 3 times at once, the next one 4 times, and the last one 10
// times.
const (
	orderCount      = 8
	firstDeliveries = 3
	killedOrder     = "order-3" // its first worker is killed
	benOrder        = "order-4" // its customer is not known at first
	stoppedOrder    = "order-5" // its first worker is stopped
)

// firstRuns say how the histories of some orders begin.
var firstRuns = map[string]string{
	killedOrder:  "abandoned ",
	stoppedOrder: "abandoned (whose worker reported \"failed\" too late) ",
	benOrder:     "failed ",
}

func orderName(i int) string { return fmt.Sprint("order-", i+1) }

func main() { story.Main(tellStory, runWorker) }

// day is what the story needs to know.
type day struct {
	*story.Story
	shop    *shop
	ledger  *holdfast.Ledger
	link    *slowLink // between worker 1 and the shop
	workers [5]*story.Actor
}

// tellStory starts an emulator of DynamoDB and five workers, and tells what happens.
func tellStory(out io.Writer) error {
	s := story.New(out, "Event-worker: events that are delivered several times, and a run ledger in DynamoDB")
	defer s.End()
	ctx := context.Background()
	server, err := dynamodbtest.Start(ctx)
	if err != nil {
		return err
	}
	s.AtEnd(func() { server.Stop() })
	client, err := openLocks(ctx, server.Endpoint, "the shop")
	if err != nil {
		return err
	}
	s.AtEnd(func() { _ = client.Close() })
	d := &day{Story: s, shop: &shop{dynamodbtest.Client(server.Endpoint)}, ledger: client.Ledger(ledgerTable, nil)}
	if err := d.shop.createTables(ctx); err != nil {
		return err
	}
	if d.link, err = newSlowLink(server.Direct); err != nil {
		return err
	}
	s.AtEnd(d.link.close)
	if err := d.shop.addCustomer(ctx, "anna"); err != nil {
		return err
	}
	s.Tell("DynamoDB runs. There are %d orders. Anna is a customer; Ben, who has ordered %s, is not known yet",
		orderCount, benOrder)
	for i := range d.workers {
		name, shopURL := fmt.Sprint("worker ", i+1), server.Endpoint
		if i == 0 {
			shopURL = d.link.url
		}
		d.workers[i], err = s.Start(name, name, "LEDGER="+server.Endpoint, "SHOP="+shopURL)
		if err != nil {
			return err
		}
	}
	return errors.Join(d.loseWorkers(ctx), d.replay(ctx), d.check(ctx))
}

// ask writes a line to a worker and tells what it says, up to a line that begins with some words.
func ask(w *story.Actor, line, words string) error {
	_, err := w.Ask(line, words)
	return err
}

// loseWorkers delivers all orders while two workers are lost, and their orders once more.
func (d *day) loseWorkers(ctx context.Context) error {
	d.Tell("worker 1 begins %s, and is killed while its write is on the way", killedOrder)
	if err := ask(d.workers[0], "begin "+killedOrder, killedOrder+": holds"); err != nil {
		return err
	}
	if err := d.workers[0].Order("continue"); err != nil {
		return err
	}
	select {
	case <-d.link.held:
	case <-time.After(time.Minute):
		return errors.New("worker 1 did not write")
	}
	d.workers[0].Kill()
	d.Tell("worker 2 begins %s, and is stopped (SIGSTOP)", stoppedOrder)
	if err := ask(d.workers[1], "begin "+stoppedOrder, stoppedOrder+": holds"); err != nil {
		return err
	}
	if err := errors.Join(d.workers[1].Stop(), d.workers[1].Order("continue")); err != nil {
		return err
	}
	d.Tell("each order is delivered 3 to 10 times at once, to the three other workers")
	if err := d.deliverAll(); err != nil {
		return err
	}
	d.Tell("the queue delivers %s and %s again, until the runs of worker 1 and worker 2 are abandoned", killedOrder,
		stoppedOrder)
	if err := ask(d.workers[2], "await "+killedOrder, "done"); err != nil {
		return err
	}
	if err := ask(d.workers[3], "await "+stoppedOrder, "done"); err != nil {
		return err
	}
	answer := d.link.deliver()
	d.Tell("the write of worker 1, which is dead, arrives at the shop: %s", answer)
	if !strings.HasPrefix(answer, rejected) {
		return errors.New("the late write was not rejected")
	}
	d.Tell("worker 2 continues")
	if err := d.workers[1].Continue(); err != nil {
		return err
	}
	_, err := d.workers[1].Hear("done")
	return err
}

// deliverAll delivers all orders to workers 3 to 5 at once.
func (d *day) deliverAll() error {
	workers := d.workers[2:]
	deliveries, next := make([][]string, len(workers)), 0
	for i := range orderCount {
		counts := make([]int, len(workers))
		for range firstDeliveries + i {
			counts[next%len(workers)]++
			next++
		}
		for j, n := range counts {
			deliveries[j] = append(deliveries[j], fmt.Sprintf("%s=%d", orderName(i), n))
		}
	}
	for i, w := range workers {
		if err := w.Order("deliver " + strings.Join(deliveries[i], " ")); err != nil {
			return err
		}
	}
	for _, w := range workers {
		if _, err := w.Hear("done"); err != nil {
			return err
		}
	}
	return nil
}

// replay delivers all orders again, when the cause of the one failure is gone.
func (d *day) replay(ctx context.Context) error {
	d.Tell("Ben is a customer now. The whole day is replayed: each order is delivered 3 to 10 times again")
	if err := d.shop.addCustomer(ctx, "ben"); err != nil {
		return err
	}
	if err := d.deliverAll(); err != nil {
		return err
	}
	for i := range orderCount {
		status, err := readNewestStatus(ctx, d.shop.Client, orderName(i))
		if err != nil || status != "succeeded" {
			return fmt.Errorf("a plain worker reads %q for %s (%v)", status, orderName(i), err)
		}
	}
	d.Tell("a plain worker, which knows the table and not Holdfast, reads \"succeeded\" for all orders, and stops, too")
	return nil
}

// check tells what the ledger has kept, and checks that each order has one parcel, of the run that has succeeded.
func (d *day) check(ctx context.Context) error {
	parcels, err := d.shop.readParcels(ctx)
	if err != nil {
		return err
	}
	for i := range orderCount {
		order := orderName(i)
		runs, err := d.ledger.History(ctx, order)
		if err != nil {
			return err
		}
		var states []string
		for _, r := range runs {
			states = append(states, string(r.State))
			if r.LateReport != "" {
				states = append(states, fmt.Sprintf("(whose worker reported %q too late)", r.LateReport))
			}
		}
		history := strings.Join(states, " ")
		d.Tell("the runs of %s: %s", order, history)
		if strings.Count(history, "succeeded") != 1 || !strings.HasPrefix(history, firstRuns[order]) {
			return errors.New("its history is wrong")
		}
		if last := runs[len(runs)-1]; last.State != holdfast.RunSucceeded || parcels[order] != last.ID {
			return fmt.Errorf("its parcel is that of run %q", parcels[order])
		}
	}
	d.Tell("there are %d orders and %d parcels, each of the run that has succeeded", orderCount, len(parcels))
	if len(parcels) != orderCount {
		return errors.New("there is a parcel too many, or too few")
	}
	return nil
}
