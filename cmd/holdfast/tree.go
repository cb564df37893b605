package main

import (
	"fmt"
)

// process is one of a tree.
type process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`

	parent, group int
	started       string // in the kernel's ticks; tells two processes of one number apart
	dead          bool   // not reaped yet
}

// processNames are processes as a message shows them.
func processNames(all []process) []string {
	const most = 5
	var names []string
	for i, p := range all {
		if i == most {
			return append(names, fmt.Sprintf("%d more", len(all)-most))
		}
		name := printableText(p.Name)
		if p.PID != 0 {
			name += fmt.Sprintf("[%d]", p.PID)
		}
		names = append(names, name)
	}
	return names
}
