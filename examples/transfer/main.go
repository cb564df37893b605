// Transfer moves money between two accounts in PostgreSQL, under a lock in etcd. One of two servers is stopped while it
// holds the lock, for longer than its lease. The other one transfers meanwhile. When the first one continues,
// PostgreSQL rejects it: its fencing token is stale. No transfer happens twice, even if a server repeats it after a
// lost reply.
//
// Run it with: go run ./examples/transfer
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/database"
	"github.com/holdfast-go/holdfast/examples/internal/story"
	"github.com/holdfast-go/holdfast/fence"
	_ "github.com/holdfast-go/holdfast/store/etcd"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	"github.com/holdfast-go/holdfast/store/postgres"
)

const (
	lockName = "accounts/anna-ben"
	leaseTTL = 8 * time.Second // longer than the pauses of a busy machine
)

func main() { story.Main(tellStory, runServer) }

// transfer moves money in one transaction. A transfer has an id: if it was done before, nothing happens, so that it can
// be repeated after a lost reply.
func transfer(ctx context.Context, db *pgxpool.Pool, token fence.Token, id string, cents int) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		// First the fence: it rejects a stale token, and makes transfers wait for each other.
		if err := postgres.Fence(ctx, tx, nil, lockName, token); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `insert into transfers (id, token) values ($1, $2) on conflict (id) do nothing`,
			id, int64(token))
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `update accounts set cents = cents + case owner when 'anna' then -$1::int else $1::int end`,
			cents)
		return err
	})
}

// runServer is one of the two servers. It waits for orders: "lock", and then "transfer ID CENTS" as often as it is
// told.
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
	var lease *holdfast.Lease
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		words := strings.Fields(orders.Text())
		switch words[0] {
		case "lock":
			if lease, err = locks.Mutex(lockName, nil).Lock(ctx); err != nil {
				return err
			}
			story.Say("holds the lock with token %d, and is about to write", lease.Token())
		case "transfer":
			token, err := fence.Of(lease)
			if err != nil {
				return err
			}
			var cents int
			if _, err := fmt.Sscan(words[2], &cents); err != nil {
				return err
			}
			err = transfer(ctx, db, token, words[1], cents)
			switch stale, ok := errors.AsType[*fence.StaleError](err); {
			case ok:
				story.Say("rejected: transfer %s with token %d, since the accounts have seen token %d",
					words[1], stale.Token, stale.Largest)
			case err != nil:
				return err
			default:
				story.Say("done: transfer %s of %d cents with token %d", words[1], cents, token)
			}
		case "release":
			err := lease.Release()
			story.Say("released: %v", err)
		}
	}
	return nil
}

// tellStory starts etcd, PostgreSQL and two servers, and tells what happens.
func tellStory(out io.Writer) (err error) {
	s := story.New(out, "Transfer: an etcd lock, and a fence in PostgreSQL")
	defer s.End()
	ctx := context.Background()
	cluster, err := etcdtest.Start(ctx, etcdtest.Options{Members: 1})
	if err != nil {
		return err
	}
	s.AtEnd(cluster.Close)
	databaseURL, db, err := database.Start(ctx, s, `
		create table accounts (owner text primary key, cents int check (cents >= 0));
		create table transfers (id text primary key, token bigint);
		insert into accounts values ('anna', 10000), ('ben', 0)`)
	if err != nil {
		return err
	}
	s.Tell("etcd and PostgreSQL run. Anna has 100.00, and Ben has 0.00")

	env := []string{"LOCKS=etcd://" + strings.Join(cluster.Endpoints(), ","), "DATABASE=" + databaseURL}
	var servers [2]*story.Actor
	for i := range servers {
		if servers[i], err = s.Start(fmt.Sprint("server ", i+1), fmt.Sprint("server ", i+1), env...); err != nil {
			return err
		}
	}
	if err := tellTransfers(s, servers[0], servers[1]); err != nil {
		return err
	}
	var anna, ben, transfers int
	if err := db.QueryRow(ctx, `select (select cents from accounts where owner = 'anna'),
		(select cents from accounts where owner = 'ben'), (select count(*) from transfers)`).
		Scan(&anna, &ben, &transfers); err != nil {
		return err
	}
	s.Tell("Anna has %d.%02d, and Ben has %d.%02d, after %d transfers", anna/100, anna%100, ben/100, ben%100, transfers)
	if anna != 7000 || ben != 3000 || transfers != 2 {
		return errors.New("the balances are wrong")
	}
	return nil
}

func tellTransfers(s *story.Story, first, second *story.Actor) error {
	ask := func(a *story.Actor, order, answer string) error {
		_, err := a.Ask(order, answer)
		return err
	}
	if err := ask(first, "lock", "holds the lock"); err != nil {
		return err
	}
	s.Tell("server 1 is stopped (SIGSTOP), and its order to transfer waits")
	if err := errors.Join(first.Stop(), first.Order("transfer A 1000")); err != nil {
		return err
	}
	if err := ask(second, "lock", "holds the lock"); err != nil {
		return err
	}
	if err := ask(second, "transfer A 1000", "done"); err != nil {
		return err
	}
	s.Tell("server 1 continues")
	if err := first.Continue(); err != nil {
		return err
	}
	if _, err := first.Hear("rejected"); err != nil {
		return err
	}
	s.Tell("server 2 does not know whether its reply was lost, and repeats the transfer with the same token")
	if err := ask(second, "transfer A 1000", "done"); err != nil {
		return err
	}
	if err := ask(second, "transfer B 2000", "done"); err != nil {
		return err
	}
	if err := ask(second, "release", "released: <nil>"); err != nil {
		return err
	}
	return ask(first, "release", "released: ")
}
