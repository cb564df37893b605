// Package guard is what runs beside the wrapper of a command: the guard, which ends the command in time, the listener,
// which learns the signals of the process group, and the tree of processes that the guard ends. See the documentation
// of the command for how they work together.
//
// It imports little, because its helpers work before all other packages are initialized: see start.go.
package guard
