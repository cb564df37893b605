package goredis_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	redisstore "github.com/holdfast-go/holdfast/store/redis"
	"github.com/holdfast-go/holdfast/store/redis/goredis"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// A program that uses go-redis keeps its locks in the same Redis.
func ExampleNew() {
	server := startServer()
	defer server.Stop()

	ctx := context.Background()
	redisClient := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer redisClient.Close()

	store, err := goredis.New(ctx, redisClient, &redisstore.Options{Key: "locks:*"})
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close() // which closes the store, and leaves redisClient open

	lease, err := client.Mutex("nightly-report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	fmt.Println("keys of locks:", redisClient.Keys(ctx, "locks:*").Val())
	// Output: keys of locks: [locks:nightly-report]
}

// startServer starts a Redis for an example. A program has the address of one.
func startServer() *redistest.Server {
	server, err := redistest.Start()
	if err != nil {
		log.Fatal(err)
	}
	return server
}

// Behind Sentinels the store is made with the options of the go-redis client, and not with the client.
func ExampleNewFailover() {
	ctx := context.Background()
	options := &redis.FailoverOptions{
		MasterName:    "primary",
		SentinelAddrs: []string{"sentinel-a:26379", "sentinel-b:26379", "sentinel-c:26379"},
	}
	redisClient := redis.NewFailoverClient(options)
	defer redisClient.Close()

	store, err := goredis.NewFailover(ctx, options, nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lease, err := client.Mutex("nightly-report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
}
