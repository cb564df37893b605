package azure_test

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/azure"
)

// A program passes the address of the container, and its credentials.
func ExampleNew() {
	ctx := context.Background()
	key, err := azure.SharedKey("account", os.Getenv("AZURE_STORAGE_KEY"))
	if err != nil {
		log.Fatal(err)
	}
	store, err := azure.New(ctx, http.DefaultClient, "https://account.blob.core.windows.net/container",
		&azure.Options{Credentials: key, Prefix: "locks/"})
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
