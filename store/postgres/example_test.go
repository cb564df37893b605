package postgres_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/store/postgres"
)

// A program that has a pool of its own shares it with the locks.
func ExampleNew() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://app@localhost/app?pool_max_conns=8")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	store, err := postgres.New(ctx, pool, &postgres.Options{Schema: "locks", Create: true})
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close() // which leaves the pool open

	lease, err := client.Mutex("nightly-report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	log.Print("the report is ours, with token ", lease.Token())
}

// The transaction does its work only if no later holder of the lock has done any.
func ExampleFence() {
	ctx := context.Background()
	var pool *pgxpool.Pool    // of the database that has the resource
	var lease *holdfast.Lease // of an exclusive lock, in any store

	token, err := fence.Of(lease)
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := postgres.Fence(ctx, tx, nil, "stock", token); err != nil {
			return err // a later holder has been here: the transaction is rolled back
		}
		_, err := tx.Exec(ctx, "update stock set shoes = shoes - 1")
		return err
	})
	if err != nil {
		log.Print(err)
	}
}
