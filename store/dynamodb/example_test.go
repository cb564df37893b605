package dynamodb_test

import (
	"context"
	"log"

	"github.com/aws/aws-sdk-go-v2/config"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/dynamodb"
)

// A program that has a client of the AWS SDK shares it with the locks.
func ExampleNew() {
	ctx := context.Background()
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		log.Fatal(err)
	}
	store, err := dynamodb.New(ctx, sdk.NewFromConfig(cfg), "locks", &dynamodb.Options{Create: true})
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
