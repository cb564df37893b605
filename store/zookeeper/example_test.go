package zookeeper_test

import (
	"context"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/zookeeper"
)

// The store makes its own connections to the servers.
func ExampleNew() {
	ctx := context.Background()
	store, err := zookeeper.New(ctx, []string{"zk-a:2181", "zk-b:2181", "zk-c:2181"},
		&zookeeper.Options{Namespace: "locks"})
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close() // which also closes the connections

	lease, err := client.Mutex("nightly-report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	log.Print("the report is ours, with token ", lease.Token())
}

// The permits of a semaphore are shared with Java programs that use Curator's InterProcessSemaphoreV2 on the path
// /printers.
func ExampleNew_curatorSemaphore() {
	ctx := context.Background()
	store, err := zookeeper.New(ctx, []string{"zk-a:2181"},
		&zookeeper.Options{Layout: zookeeper.LayoutCuratorSemaphore})
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lease, err := client.Semaphore("printers", 3, nil).Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	log.Print("one of three printers is ours")
}
