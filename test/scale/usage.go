package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what a process uses at one moment.
type Usage struct {
	// Resident is the memory that the process has of the machine, in bytes, without the pages of its program's file,
	// which all its processes share.
	Resident   int64
	Heap       int64 // bytes in use after a garbage collection: heap and stacks
	Goroutines int
}

// readUsage reads what this process uses. With fresh, it first gives back to the machine what it does not use, so that
// what comes later is not hidden by memory that the start of the program needed.
func readUsage(fresh bool) (u Usage, err error) {
	if fresh {
		debug.FreeOSMemory()
	}
	if u.Resident, err = readProcValue("/proc/self/status", "RssAnon"); err != nil {
		return u, err
	}
	u.Resident *= 1024
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Heap, u.Goroutines = int64(m.HeapAlloc+m.StackInuse), runtime.NumGoroutine()
	return u, nil
}

// since returns how much more is used than before.
func (u Usage) since(before Usage) Usage {
	return Usage{u.Resident - before.Resident, u.Heap - before.Heap, u.Goroutines - before.Goroutines}
}

func (u Usage) add(v Usage) Usage {
	return Usage{u.Resident + v.Resident, u.Heap + v.Heap, u.Goroutines + v.Goroutines}
}

// readProcValue reads the value behind a name and a colon in a file of /proc.
func readProcValue(file, name string) (value int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name+":"); ok {
			_, err := fmt.Sscan(text, &value)
			return value, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// machineTime reads the clock that all processes of the machine share.
func machineTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}
