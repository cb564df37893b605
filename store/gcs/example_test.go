package gcs_test

import (
	"context"
	"log"

	"cloud.google.com/go/storage"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/gcs"
)

// A program that has a client of Cloud Storage shares it with the locks.
func ExampleNew() {
	ctx := context.Background()
	storageClient, err := storage.NewClient(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer storageClient.Close()
	store, err := gcs.New(ctx, storageClient, "my-bucket", &gcs.Options{Prefix: "locks/"})
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close() // which leaves the client of Cloud Storage open

	lease, err := client.Mutex("nightly-report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	log.Print("the report is ours, with token ", lease.Token())
}
