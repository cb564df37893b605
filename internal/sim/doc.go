// Package sim runs whole clients against a faulty store in fake time.
//
// A simulation has one store, a few hosts with one client each, and users on them that lock, hold, wait and release.
// The network between the hosts and the store loses, delays and duplicates requests and replies. Faults pause,
// suspend, disconnect and crash hosts, whose clocks run at different rates and are set. Meanwhile the checker
// compares what the users may believe with what the store says: never may two of them believe that they hold one
// lock. At the end the faults stop, and then every user must get the lock that it waits for.
//
// What the parts are:
//   - simulation.go sets a simulation up, runs it, and checks what is left at its end;
//   - users.go has what the users do;
//   - host.go and network.go have the machines with their clocks, and the network to the store;
//   - faults.go has what goes wrong, and storekinds.go and revertible.go the stores that misbehave;
//   - checker.go finds violations; checkedstore.go shows it what the clients ask of the store.
//
// The tests call one simulation a world. Time is that of testing/synctest, so a simulated minute costs milliseconds.
// One number, the seed, decides what happens, except for the order in which the scheduler runs what is due at the
// same moment.
package sim
