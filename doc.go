// Package holdfast is a distributed lock toolkit: mutexes, read-write locks, weighted semaphores and elections over the
// stores that people already run. [LockAll] takes several of them at once. Package holdfasttest helps to test code that
// uses them.
//
//	client, err := holdfast.Open(ctx, "file:///var/lib/holdfast", nil)
//	lease, err := client.Mutex("inventory:123", nil).Lock(ctx)
//	defer lease.Unlock()
//	work(lease.Context(), lease.Token())
//
// # Leases
//
// Whoever is granted a lock gets a [Lease]. It is renewed in the background a third of the way through its TTL, and ends
// by Unlock, by loss, or with the client. A lease is believed in until the TTL after the start of the request that
// last confirmed it, less a margin, on a clock that goes on while the machine sleeps. At that moment its context ends,
// whatever the network does, and no late answer brings it back; nobody else can have been granted the lock before.
//
// What a lease cannot do is stop code that was just about to write when its process was frozen. [Lease.Valid] reads the
// clock and narrows that window; the token of an exclusive lease, checked by the resource itself, closes it.
//
// # Waiting
//
// A context given to Lock bounds the waiting. When it ends Lock returns at once, and a claim that may have been left at
// the store is removed in the background. On most stores the plain mutex claims of one client wait in its own memory,
// first come, first served, and one of them at a time at the store; see LockOptions.Fair for order among clients. A nil
// context panics, as it does in the standard library.
//
// # Stores
//
// Each store promises what it can: see [Client.Info] and GUARANTEES.md. Packages under store/ offer them; each
// registers its URL scheme for [Open] when imported.
package holdfast
