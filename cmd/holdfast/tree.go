package main

import (
	"fmt"
	"os"
)

// process is one process of a tree.
type process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`

	parent, group int
	started       string // start time in the kernel's ticks; distinguishes two processes that had one number
	dead          bool   // it has ended and is not reaped yet
}

// ownFiles are the input, the output and the error output of this process.
func ownFiles() []uintptr { return []uintptr{os.Stdin.Fd(), os.Stdout.Fd(), os.Stderr.Fd()} }

// processNames lists the first processes for a message: name[number].
func processNames(all []process) []string {
	const maxShown = 5
	var names []string
	for i, p := range all {
		if i == maxShown {
			return append(names, fmt.Sprintf("%d more", len(all)-maxShown))
		}
		name := printableText(p.Name)
		if p.PID != 0 {
			name += fmt.Sprintf("[%d]", p.PID)
		}
		names = append(names, name)
	}
	return names
}
