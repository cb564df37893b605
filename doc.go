// Package holdfast is a distributed lock toolkit: mutexes, read-write locks, weighted semaphores and elections on the
// stores that people already run. [LockAll] acquires several locks at once. Package holdfasttest helps to test code
// that uses them.
//
//	client, err := holdfast.Open(ctx, "file:///var/lib/holdfast", nil)
//	lease, err := client.Mutex("inventory:123", nil).Lock(ctx)
//	defer lease.Release()
//	work(lease.Context(), lease.Token())
//
// # Leases
//
// A caller that is granted a lock gets a [Lease]. The client renews it in the background every third of its TTL, until
// it is released, lost or detached, or the client is closed. A lease is valid for its TTL, minus a margin, counted from
// the start of the last request that confirmed it, on a clock that keeps running while the machine sleeps. At that
// moment its context ends, whatever the network does, and no late answer makes it valid again. Nobody else can have
// been granted the lock before that moment.
//
// # Losing a lease
//
// A lease that ends early is lost: its context ends, with a [*LossError] as the cause, which [Lease.Err] and
// [Lease.Release] return as well. Pass the lease's context to everything that is done under the lock, so that it stops
// in time. Do, on the client and on each primitive, does that, and returns [ErrLost] if the lock was lost while the
// function ran.
//
//	err := client.Do(ctx, "report", func(ctx context.Context, lease *holdfast.Lease) error {
//		return writeReport(ctx, lease.Token())
//	})
//	var loss *holdfast.LossError
//	if errors.As(err, &loss) {
//		log.Printf("report abandoned: %s", loss.Cause) // such as "expired"
//	}
//
// # Fencing
//
// No lock service can stop code that was about to write when its process was frozen. [Lease.Valid] reads the clock, and
// makes that window small. The token of an exclusive lease closes it: each token is larger than all tokens granted
// before on that lock, so a resource that remembers the largest token it has seen can refuse a smaller one.
//
//	UPDATE accounts SET balance = $1, token = $2 WHERE id = $3 AND token <= $2
//
// # Waiting
//
// The context given to Lock bounds the waiting, and not the lease. When it ends, Lock returns at once, and a claim that
// may be left in the store is removed in the background. On most stores the plain mutex claims of one client wait in
// its own memory, first come, first served, and one of them at a time waits in the store; see LockOptions.Fair for
// order among clients. A nil context gives ErrInvalid.
//
// # Running something once
//
// A lock does not stop the second delivery of a message, which comes when the first one has been handled. A [Ledger]
// remembers what has succeeded: it runs each key, such as the message's id, until a run has succeeded, and then never
// again.
//
//	receipt, err := client.Ledger("payments", nil).Do(ctx, orderID, nil, takePayment)
//
// # Choosing a store
//
// A store is a package under store/, which registers its URL scheme for [Open] when it is imported.
//
//   - One machine and no server: file.
//   - etcd, ZooKeeper or Consul is there, and work must never be done twice: use it.
//   - PostgreSQL is there: postgres, whose Fence checks the token in the same transaction as the write. MySQL or
//     MariaDB: mysql, with fence.SQL.
//   - NATS with JetStream is there: nats, with sync_interval: always on the servers.
//   - AWS only: dynamodb, or s3. Google Cloud only, and few waiters: gcs. Azure only: azure. A Kubernetes cluster only: kubernetes.
//   - Redis is there, and a lock only saves work that may be done twice: redis.
//   - Tests: holdfasttest, or memory.
//
// Each store promises what it can: see [Client.Info], [Client.Examine] and GUARANTEES.md.
package holdfast
