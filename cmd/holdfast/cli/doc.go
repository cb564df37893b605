// Package cli is the holdfast command, for programs that bring stores of their own. This is a whole one:
//
//	package main
//
//	import (
//		_ "example.com/mystore" // registers mystore://
//
//		"github.com/holdfast-go/holdfast/cmd/holdfast/cli"
//		_ "github.com/holdfast-go/holdfast/cmd/holdfast/stores" // those of the holdfast command; may be left out
//	)
//
//	func main() { cli.Main() }
//
// main must do nothing else first, and no package that it imports may start a goroutine or a process when it is
// initialized: the helper processes below are this program, started again.
//
// # One rule
//
// The lock lives as long as the work, and the work ends before anybody else can be granted the lock. A library alone
// cannot keep that rule for a command: the process that renews the lease may be stopped, killed, or stuck in a call to
// the store, and the command would run on. So "holdfast run" is several processes of this one binary.
//
// # The processes of holdfast run
//
//	wrapper                  holdfast run: holds the lease, renews it, forwards signals, sets the exit code
//	├── signal-listener      in the wrapper's process group: learns which signals the whole group received
//	└── lock-guard           in a session of its own: ends the command in time, whatever becomes of the wrapper
//	    └── the command      in the wrapper's session and process group, where the terminal and the shell expect it
//	        └── ...          everything the command starts
//
// The wrapper (wrapper.go) starts the guard, and the guard starts the command. A moment later the wrapper starts the
// signal listener; a command that has ended by then needs none. Both helpers, and the tree of processes below the
// guard, are in internal/guard. That package imports neither a store nor the library, so that a helper starts before Go
// has initialized those (internal/guard/start.go).
//
// "holdfast once" runs its command by the same processes: what it holds is a run of a ledger's key in place of a lock
// (oncejob.go).
//
// # The pipes
//
//	wrapper --control--> guard      ControlMessage: start, the lease's new expiry, its loss, signals to forward
//	guard   --reports--> wrapper    Report: the command started, exited, was terminated, was killed
//	wrapper --questions--> listener one byte: did the whole group receive this signal?
//	listener --answers--> wrapper   one byte: 1 if it did
//
// The first two carry JSON values, one per line (internal/guard/protocol.go). A pipe that closes means that the other
// side has ended. No side waits for another: a write that would block is given up, because the reader may be stopped.
//
// # Who watches whom, and who kills when
//
// The guard keeps a copy of the lease's expiry (leaseMirror). A supervisor (internal/guard/supervisor.go) compares it
// with the clock. When only the grace is left, or when the lease is lost and nobody else can have the lock yet, it
// signals the whole tree (--signal); when the lease expires, or somebody else may have the lock already, it sends
// SIGKILL until nothing is left. It needs nothing from the wrapper. If the control pipe closes, the wrapper has ended;
// the guard then terminates the tree. While it does so, it holds the file that keeps the dead wrapper's claim alive
// (driver.Store.LivenessFile), so that no other client gets the lock before the tree has ended.
//
// The wrapper watches the guard in turn: by its reports, and by whether it acts on a loss in time. It kills a guard
// that does not, and runs its successor itself for what the guard has left (wrapper.takeOverTree). When a guard dies,
// the kernel kills the command, because its parent-death signal is SIGKILL, and makes the wrapper the parent of what
// the command has started, because the wrapper is a subreaper too. (Other systems than Linux have neither: see
// internal/guard/tree_other.go.)
//
// # Decisions
//
// Helpers of the command work while packages are initialized. So they take a fraction of the time and memory that the
// program needs for the libraries of all stores, most of which a run does not use. If the order of initialization were
// another one, helpers would start later, and do the same. A test reads from the runtime's trace that no store was
// initialized. Rejected: a second program, which must be installed next to the first and be of the same version; and
// one that is unpacked at each start.
//
// Signals other than SIGHUP and SIGINT that were ignored at the start are not ignored in the command. The Go runtime
// takes them over before any code of ours runs.
//
// If the store gives no reply when a run releases its lock, the run does not fail. The work was done while the lock was
// valid, and a scheduler that sees a failure repeats the work.
//
// A grace period is accepted if it leaves a renewal a twentieth of the TTL. Otherwise a command would be told to end
// whenever a renewal is due.
//
// The command of a killed wrapper is asked to end, not killed at once. On the file store its guard keeps the claim
// alive, and elsewhere the TTL does.
//
// HOLDFAST_HELD names claims by their refs and tokens, which are looked up before a run is refused, because
// environments are kept for longer than locks (at, cron, daemons). The store's name is only a hint, since one store has
// many names. A run inside another run of the same name is refused; with --shared or --limit, only if it would wait
// forever.
//
// token floor raises nothing on etcd, ZooKeeper and Consul. The servers' own ways raise the tokens of all clients at
// once. Rejected: a constant that is added to their counters. It would be cheap, but other clients of the same locks
// use the counters as tokens, and a client that has not yet read a new constant would grant a smaller token after a
// larger one.
//
// The configuration is lines of key = value with sections per pattern of names, read by a parser of our own. It names
// the line of each error, shows no value that may be a password, and costs each start about 13 µs (6 µs if there is no
// file). A later line counts before an earlier one, and the user's file is read after the machine's, so that one rule
// says which of several counts. Rejected: TOML or YAML by a library: a dependency for ten keys, whose errors may quote
// a line with a password. Rejected: to ignore unknown HOLDFAST_ variables, one of which may be HOLDFAST_STORE with a
// typing error.
//
// The metrics file has counters that go on, because a job of cron would otherwise count to 1 forever. So each program
// reads the file, adds what is new, and renames a new file over it, under a lock of the folder: a lock file would have
// to be left there. The text is parsed by code of our own, because only text that this program has written is ever
// read. Rejected: one file per process, which somebody would have to remove; and the library's gauges, because those of
// a program that was killed would remain. Times of the last use say the same, and stay true.
//
// A failed export of OpenTelemetry is not repeated. The metrics are sums, so the next export has them. Repeating the
// last one would delay the end of every job while a receiver is down.
//
// acquire prints JSON, because scripts want the token.
//
// All JSON is written by one function and described by one schema, and the helper with which the tests run the program
// checks whatever it prints. So no record can be added or changed without the schema. Durations are whole milliseconds,
// rounded up in the measurements of doctor; the text has finer figures. Rejected: --json FILE for the record of run
// next to a switch elsewhere: one flag with two meanings.
//
// What run --on-request starts belongs to the tree of the command. The guard starts it, so it is ended when the lock is
// lost, and the lock is kept until it has ended. With release the lease is renewed until the tree is gone. The exit
// code is one of its own, 79, because nothing was lost, and the work was not finished either. Rejected: a script that
// the wrapper starts, which could work on when the lock has passed on.
package cli
