package servertest

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

// StartProcess starts a command that the kernel kills when this process ends in any way (on Linux; on other systems it
// only starts the command). The caller calls c.Wait.
func StartProcess(c *exec.Cmd) error {
	dieWithUs(c)
	done := make(chan error)
	startQueue() <- func() { done <- c.Start() }
	return <-done
}
