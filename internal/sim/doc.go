// Package sim runs whole clients against a faulty store in fake time.
//
// A world is one store, a few hosts with a client each, and users on them that lock, hold, wait and give up. Between host
// and store requests and replies are lost, late or doubled; hosts are paused, suspended, cut off and killed; their clocks
// run at different rates and are set. Meanwhile the judge watches what the users may believe and what the store says. At
// the end the faults stop, and everybody who waits must be served.
//
// The time is that of testing/synctest, so a minute costs milliseconds. One number, the seed, decides what happens, up to
// the order in which the scheduler runs what is due at the same moment.
package sim
