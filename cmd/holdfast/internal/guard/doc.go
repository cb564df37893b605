// Package guard is what runs beside the wrapper of a command: the guard, which ends the command in time, the listener,
// which learns the signals of the process group, and the tree of processes that the guard ends. See the documentation
// of the command for how they work together.
//
// One rule says who is alive, and every place follows it: what this program has started and has not reaped is alive, and so
// is each of its descendants that the kernel still knows. A process has ended when the kernel says so: a wait finds no
// child, or a look at its number finds no such process. The state of its first thread says nothing about the others, and a
// look that failed says nothing about anybody: see hasEnded.
//
// It imports little, because its helpers work before all other packages are initialized: see start.go.
package guard
