// Package ledger has processes handle events that are delivered more than once, and checks by the run ledger's history,
// by the workers' logs and by a fenced resource that each event was handled as promised.
//
// The test process is the queue of the events, which delivers at least once, and the resource that the work on an event
// writes to: per key, it refuses a token that is smaller than the largest one that it has seen. The workers are
// processes of the same program. They are killed and stopped at random, also between the end of their work and its
// report, and their links to the store are cut.
package ledger
