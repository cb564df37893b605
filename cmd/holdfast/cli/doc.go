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
package cli
