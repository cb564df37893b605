// Package guard is what runs next to the wrapper of a command: the guard, which ends the command in time, the listener,
// which learns the signals of the process group, and the tree of processes that the guard ends. See the documentation
// of the command for how they work together.
//
// One rule says who is alive, and every place follows it: what this program has started and has not reaped is alive,
// and so is each of its descendants that the kernel still knows. A process has ended when the kernel says so: a wait
// finds no child, or a look at its number finds no such process. The state of its first thread says nothing about the
// others, and a look that failed says nothing about anybody: see hasEnded.
//
// It imports little, because its helpers work before all other packages are initialized: see start.go.
//
// # Decisions
//
// Sessions and groups. The guard is started in the wrapper's session and process group, starts the command there, where
// the terminal and its shell expect it, and only then moves to a session of its own. So signals of the terminal and
// kills of the group do not reach it. Since the command's parent is in another session, it does not change whether the
// kernel takes the group for an orphaned one, in which Ctrl-Z stops nobody.
//
// If the guard fails, the kernel gives the tree to the wrapper, which is a subreaper too and ends the tree by the same
// code. The wrapper kills a guard that does not do its work (it was stopped, for example): one that has not told the
// tree to end when half of the grace period has passed, or does not act on a loss within half the margin. As long as
// nobody else can acquire the lock, the guard may be late by half the grace period.
//
// As process 1 of a container, holdfast gets the orphans that others leave there. It must not reap its own children,
// for which os/exec waits. The kernel gives orphans to the first thread of process 1, and knows of each child which
// thread has started it. So the first thread starts nothing, and reaps its own children only. A process of its own for
// that, as --init has, would be one more that signals must pass.
//
// The listener, a third process, stays in the group as long as the command runs. A signal that it received was sent to
// the group, and so to the command too. A signal that it did not receive was sent to the wrapper alone, and is
// forwarded. Its name is not that of the program, because a signal by name is meant for the wrapper; nor is the
// guard's, so that pkill -9 holdfast leaves it alive to end the tree. The listener starts when the command has run for
// 50 ms, because it would be a sixth of the cost of a short command. A signal to the group before that may reach the
// command twice.
//
// Descendants are found in /proc by their parents. Where /proc hides other users' processes, they are also found by the
// kernel's lists of children, and by the claim's id in their environment. Where /proc belongs to another pid namespace,
// its numbers mean other processes here, and none of them is signaled: the kernel is asked about each number whether it
// is a child. A process that loses its parent becomes a child of the guard, so rounds of SIGKILL reach the whole tree.
package guard
