package etcd_test

import (
	"context"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/etcd"
)

// A program that has an etcd client already uses it for its locks too.
func ExampleNew() {
	ctx := context.Background()
	etcdClient, err := clientv3.New(clientv3.Config{Endpoints: []string{"etcd-a:2379", "etcd-b:2379", "etcd-c:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer etcdClient.Close()
	store, err := etcd.New(ctx, etcdClient, &etcd.Options{Prefix: "locks/"})
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close() // the etcd client stays open

	lease, err := client.Mutex("nightly-report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	log.Print("the report is ours, with token ", lease.Token())
}

// A service announces its address for as long as it runs, and a lease removes the key if it dies.
func ExampleNewLease() {
	ctx := context.Background()
	var etcdClient *clientv3.Client // of the program

	lease, err := etcd.NewLease(ctx, etcdClient, 15*time.Second, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Revoke(ctx)
	if _, err := lease.Put(ctx, "services/mail/10.0.0.7", "10.0.0.7:25"); err != nil {
		log.Fatal(err)
	}
	if err := lease.Keep(ctx); err != nil {
		log.Print("the service is not announced any more: ", err)
	}
}
