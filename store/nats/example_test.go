package nats_test

import (
	"context"
	"log"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/nats"
)

// A program passes JetStream over its own connection.
func ExampleNew() {
	ctx := context.Background()
	conn, err := natsclient.Connect("nats://nats.internal:4222", natsclient.MaxReconnects(-1),
		natsclient.ReconnectBufSize(-1), natsclient.FlusherTimeout(2*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		log.Fatal(err)
	}
	store, err := nats.New(ctx, js, "locks", &nats.Options{Create: true, Replicas: 3, SyncAlways: true})
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
	log.Print("the report is ours, with token ", lease.Token())
}
