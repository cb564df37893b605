// Package childtest starts the processes that tests need, so that none of them outlives a test run that was killed.
package childtest

import (
	"os/exec"
	"runtime"
	"sync"
)

// startQueue returns the queue of starts. One thread that never ends carries them out one after the other: the kernel
// kills a child together with the thread that started it.
var startQueue = sync.OnceValue(func() chan<- func() {
	todo := make(chan func())
	go func() {
		runtime.LockOSThread()
		for do := range todo {
			do()
		}
	}()
	return todo
})

// Start starts a process that the kernel kills when this process ends in any way (on Linux).
func Start(c *exec.Cmd) error {
	dieWithUs(c)
	done := make(chan error)
	startQueue() <- func() { done <- c.Start() }
	return <-done
}
