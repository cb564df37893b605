// Package childtest starts the processes that tests need, so that none of them outlives a test that was killed.
package childtest

import (
	"os/exec"
	"runtime"
	"sync"
)

// startQueue are carried out one after the other by one thread that never ends: the kernel ends a child with the thread that started it.
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

// Start starts a process that the kernel kills when ours ends, however that comes (on Linux).
func Start(c *exec.Cmd) error {
	dieWithUs(c)
	done := make(chan error)
	startQueue() <- func() { done <- c.Start() }
	return <-done
}
