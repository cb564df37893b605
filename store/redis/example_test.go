package redis_test

import (
	"context"
	"log"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/redis"
)

// A program that has a Redis client already uses it for its locks too.
func ExampleNew() {
	ctx := context.Background()
	redisClient, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer redisClient.Close()
	store, err := redis.New(ctx, redisClient, &redis.Options{Key: "locks:*"})
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close() // the Redis client stays open

	lease, err := client.Mutex("nightly-report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	log.Print("the report is ours, with token ", lease.Token())
}

// A Redlock needs one client for each of its servers, which must not be replicas of each other.
func ExampleNewRedlock() {
	ctx := context.Background()
	var clients []rueidis.Client
	for _, server := range []string{"redis-a:6379", "redis-b:6379", "redis-c:6379"} {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server}, ForceSingleClient: true})
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	store, err := redis.NewRedlock(ctx, clients, nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close() // the Redis clients stay open

	lease, err := client.Mutex("nightly-report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	log.Print("the report is ours, with token ", lease.Token())
}
