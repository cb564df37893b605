// Package sim runs whole clients against a faulty store in fake time.
//
// A simulation has one store, a few hosts with one client each, and users on them that lock, hold, wait and release.
// The network between the hosts and the store loses, delays and duplicates requests and replies. Faults pause,
// suspend, disconnect and crash hosts, whose clocks run at different rates and are set. Meanwhile the checker
// compares the leases of the users with the state of the store: two users may never act as holders of one lock at the
// same time. At the end the faults stop, and then every user must get the lock that it waits for.
//
// A paired simulation has two stores, each with a clock and a network of its own, and each host has a client of both.
// Its users take locks of one store or of both with LockAll, some with a MinHold. The checker then sees that no LockAll
// waits for a lock of one client while it holds one of another, and that one that has failed leaves nothing held.
//
// In a simulation with ledgers the users run keys in place of taking locks, and an operator allows retries, breaks runs
// and removes histories. The checker then sees every write of the store, and compares the histories in it with what
// the users were told.
//
// What the parts are:
//   - simulation.go sets a simulation up, runs it, and checks what is left at its end;
//   - users.go has what the users do;
//   - host.go and network.go have the machines with their clocks, and the network to the store;
//   - faults.go causes faults, and storekinds.go and revertible.go have the stores that misbehave;
//   - ledgers.go has what the users do with ledgers, and runchecker.go what is checked there;
//   - checker.go finds violations; checkedstore.go reports the clients' calls to it.
//
// The tests call one simulation a world. It runs in the time of testing/synctest, so a simulated minute costs
// milliseconds. One number, the seed, decides what happens, except for the order in which the scheduler runs
// goroutines at the same moment.
package sim
