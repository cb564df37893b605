// Stock sells the shoes of a shop. Three servers sell them, under a lock in Redis with Sentinels. In the middle the
// primary of Redis dies, and the replica that takes over has not received a grant: two servers have the lock.
// PostgreSQL rejects the first of them, whose fencing token is stale, and the server tries again. The warehouse
// delivers shoes without the lock; FOR UPDATE makes it wait for the sale. At the end no pair was sold twice, and no
// sale was lost.
//
// Run it with: go run ./examples/stock
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/examples/internal/database"
	"github.com/holdfast-go/holdfast/examples/internal/story"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// There are more orders than pairs.
const (
	pairsAtStart   = 30
	pairsDelivered = 5
)

func main() { story.Main(tellStory, runServer) }

// shop is what the story needs to know.
type shop struct {
	*story.Story
	redis   *redistest.Group
	db      *pgxpool.Pool
	servers [3]*story.Actor

	orderCount    int
	sold, soldOut []string // the orders, as the servers say
}

// tellStory starts Redis, PostgreSQL and three servers, and tells what happens.
func tellStory(out io.Writer) error {
	s := &shop{Story: story.New(out, "Stock: a Redis lock that a failover forgets, and two guards in PostgreSQL")}
	defer s.End()
	ctx := context.Background()
	var err error
	if s.redis, err = redistest.Replicated(ctx); err != nil {
		return err
	}
	s.AtEnd(s.redis.Stop)
	databaseURL, db, err := database.Start(ctx, s.Story, fmt.Sprintf(`
		create table stock (item text primary key, pairs int);
		create table sales (id text primary key, token bigint, pairs_left int);
		insert into stock values ('shoe', %d)`, pairsAtStart))
	if err != nil {
		return err
	}
	s.db = db
	sentinels := s.redis.SentinelAddrs()
	locksURL := "redis+sentinel://" + sentinels[0] + "/" + redistest.MasterName +
		"?addrs=" + strings.Join(sentinels[1:], ",")
	for i := range s.servers {
		name := fmt.Sprint("server ", i+1)
		if s.servers[i], err = s.Start(name, name, "LOCKS="+locksURL, "DATABASE="+databaseURL); err != nil {
			return err
		}
	}
	s.Tell("Redis runs with 2 replicas and 3 Sentinels, and PostgreSQL. There are %d pairs of shoes", pairsAtStart)
	for _, scene := range []func(context.Context) error{s.sellSome, s.deliver, s.failOver, s.sellOut, s.check} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return nil
}

// order gives a server some new orders; verb says how it handles them: see runServer.
func (s *shop) order(server *story.Actor, verb string, count int) error {
	line := verb
	for range count {
		s.orderCount++
		line += fmt.Sprint(" ", s.orderCount)
	}
	return server.Order(line)
}

// hearDone waits until servers have handled their orders, and notes what they say.
func (s *shop) hearDone(servers ...*story.Actor) error {
	for _, server := range servers {
		line, err := server.Hear("done: ")
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(line, "[")
		sold, rest, _ := strings.Cut(rest, "]")
		_, rest, _ = strings.Cut(rest, "[")
		soldOut, _, _ := strings.Cut(rest, "]")
		s.sold = append(s.sold, strings.Fields(sold)...)
		s.soldOut = append(s.soldOut, strings.Fields(soldOut)...)
	}
	return nil
}

// sellSome lets all servers sell.
func (s *shop) sellSome(context.Context) error {
	s.Tell("each server receives 4 orders at once")
	for _, server := range s.servers {
		if err := s.order(server, "sell", 4); err != nil {
			return err
		}
	}
	return s.hearDone(s.servers[:]...)
}

// deliver lets the warehouse change the stock in the middle of a sale, without the lock.
func (s *shop) deliver(ctx context.Context) error {
	if err := s.order(s.servers[1], "read", 1); err != nil {
		return err
	}
	if _, err := s.servers[1].Hear(hasRead); err != nil {
		return err
	}
	s.Tell("the warehouse delivers %d pairs meanwhile. It does not know the lock", pairsDelivered)
	delivered := make(chan error, 1)
	go func() {
		_, err := s.db.Exec(ctx, `update stock set pairs = pairs + $1`, pairsDelivered)
		delivered <- err
	}()
	waits := false
	err := redistest.Until(ctx, func() bool {
		err := s.db.QueryRow(ctx, `select exists (select from pg_stat_activity where wait_event_type = 'Lock'
			and query like 'update stock set pairs = pairs + %')`).Scan(&waits)
		return err != nil || waits || len(delivered) > 0
	})
	if err != nil {
		return err
	}
	if waits {
		s.Tell("PostgreSQL lets the warehouse wait for the sale, because of FOR UPDATE")
	}
	if err := s.servers[1].Order("continue"); err != nil {
		return err
	}
	return errors.Join(<-delivered, s.hearDone(s.servers[1]))
}

// failOver replaces the primary of Redis by a replica that does not know that server 1 has the lock.
func (s *shop) failOver(ctx context.Context) error {
	primary, replicas := s.redis.Servers[0], s.redis.Servers[1:]
	// What was released before must have reached the replicas. Otherwise they would keep it locked for a TTL.
	if _, err := primary.Do("SET", "marker", "1"); err != nil {
		return err
	}
	for _, r := range replicas {
		if err := redistest.Until(ctx, func() bool {
			value, err := r.Do("GET", "marker")
			return err == nil && value == "1"
		}); err != nil {
			return err
		}
	}
	s.Tell("the replicas of Redis are cut off from the primary")
	for _, r := range replicas {
		r.Signal(syscall.SIGSTOP)
	}
	if _, err := primary.Do("CLIENT", "KILL", "TYPE", "replica"); err != nil {
		return err
	}
	if err := s.order(s.servers[0], "hold", 1); err != nil {
		return err
	}
	if _, err := s.servers[0].Hear(holdsLock); err != nil {
		return err
	}
	s.Tell("each of the other servers receives 8 orders at once, and waits for the lock")
	for _, server := range s.servers[1:] {
		if err := s.order(server, "sell", 8); err != nil {
			return err
		}
	}
	s.Tell("the primary of Redis dies. The Sentinels let a replica take over, which does not know of server 1's lock")
	if err := s.redis.DetectFailuresFast(); err != nil {
		return err
	}
	primary.Kill()
	for _, r := range replicas {
		r.Signal(syscall.SIGCONT)
	}
	if err := s.hearDone(s.servers[1:]...); err != nil {
		return err
	}
	s.Tell("the others have had the lock, too. Now server 1 continues")
	if err := s.servers[0].Order("continue"); err != nil {
		return err
	}
	line, err := s.servers[0].Hear("")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "rejected: ") {
		return errors.New("server 1 was not rejected")
	}
	return s.hearDone(s.servers[0])
}

// sellOut lets the servers compete for the last pairs.
func (s *shop) sellOut(context.Context) error {
	s.Tell("each server receives 4 orders at once again, which is more than there are pairs")
	for _, server := range s.servers {
		if err := s.order(server, "sell", 4); err != nil {
			return err
		}
	}
	return s.hearDone(s.servers[:]...)
}

// check compares the database with what the servers have said.
func (s *shop) check(ctx context.Context) error {
	var pairs, lowest int
	if err := s.db.QueryRow(ctx, `select pairs, (select min(pairs_left) from sales) from stock`).
		Scan(&pairs, &lowest); err != nil {
		return err
	}
	rows, err := s.db.Query(ctx, `select id from sales`)
	if err != nil {
		return err
	}
	sales, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	s.Tell("%d pairs at the start and %d delivered; %d sales, %d orders refused; %d pairs are left, the fewest were %d",
		pairsAtStart, pairsDelivered, len(sales), len(s.soldOut), pairs, lowest)
	slices.Sort(sales)
	slices.Sort(s.sold)
	switch {
	case !slices.Equal(sales, s.sold):
		return fmt.Errorf("the database has the sales %v, and the servers have sold %v", sales, s.sold)
	case len(s.sold)+len(s.soldOut) != s.orderCount:
		return fmt.Errorf("there were %d orders", s.orderCount)
	case pairs < 0 || lowest < 0:
		return errors.New("more was sold than there was")
	case pairs+len(sales) != pairsAtStart+pairsDelivered:
		return errors.New("pairs were lost, or sold twice")
	case pairs > 0 && len(s.soldOut) > 0:
		return errors.New("an order was refused although there were pairs")
	}
	return nil
}
