package gcs_test

import (
	"context"
	"log"

	"golang.org/x/oauth2/google"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/gcs"
)

// A program passes an HTTP client that has its credentials.
func ExampleNew() {
	ctx := context.Background()
	httpClient, err := google.DefaultClient(ctx, gcs.Scope)
	if err != nil {
		log.Fatal(err)
	}
	store, err := gcs.New(ctx, httpClient, "my-bucket", &gcs.Options{Prefix: "locks/"})
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
