//go:build unix

package benchtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is what processes have used since they began, or during a measurement.
type usage struct {
	clients  time.Duration // processor time of this process and of the workers
	servers  time.Duration // processor time of the other processes that descend from this one
	switches int64         // how often this process gave up a processor to wait
}

// startMeter begins a measurement. The function that it returns ends it. On a busy machine processor time says more
// than elapsed time.
func startMeter(workers ...int) (stop func() usage) {
	others := readOthers(workers) // which takes time that is not measured
	self := readSelf()
	return func() usage {
		now := readSelf()
		othersNow := readOthers(workers)
		return usage{
			clients:  now.clients - self.clients + othersNow.clients - others.clients,
			servers:  othersNow.servers - others.servers,
			switches: now.switches - self.switches,
		}
	}
}

// readSelf reads the usage of this process.
func readSelf() usage {
	var self syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	return usage{clients: time.Duration(self.Utime.Nano() + self.Stime.Nano()), switches: int64(self.Nvcsw)}
}

// readOthers reads the processor time of workers and of servers. Where the system does not tell it as Linux does, there
// is none.
func readOthers(workers []int) (u usage) {
	parents := readParents()
	for pid := range parents {
		switch owner := findOwner(parents, pid, append(slices.Clone(workers), os.Getpid())); {
		case owner == 0 || pid == os.Getpid():
		case owner == os.Getpid():
			u.servers += processorTime(pid)
		default:
			u.clients += processorTime(pid)
		}
	}
	return u
}

// readParents returns the parents of all processes.
func readParents() map[int]int {
	parents := map[int]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		_, after, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(after); len(fields) > 1 {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
			parents[pid], _ = strconv.Atoi(fields[1])
		}
	}
	return parents
}

// findOwner returns the process among some from which another one descends, or which it is; 0 if there is none.
func findOwner(parents map[int]int, pid int, among []int) int {
	for ; pid != 0; pid = parents[pid] {
		if slices.Contains(among, pid) {
			return pid
		}
	}
	return 0
}

// processorTime is the sum over the threads of a process.
func processorTime(pid int) (sum time.Duration) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		var ns int64
		fmt.Sscan(string(text), &ns)
		sum += time.Duration(ns)
	}
	return sum
}
