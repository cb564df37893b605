package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// chart is one picture: a bar per line of a table.
type chart struct {
	name   string // of the picture
	title  string
	unit   string
	better string // which bars are good: "longer is better"
	file   string // in figures/bench
	setup  string // of the benchmark Locks
	figure string // the unit of the figure that is shown
}

// bar is one line of a table.
type bar struct {
	label string
	value float64
}

const (
	longer  = "longer is better"
	shorter = "shorter is better"
)

// charts are all pictures.
var charts = []chart{
	{name: "bench-redis-own", title: "Redis: 64 goroutines, each with a lock of its own", unit: "cycles per second",
		better: longer, file: "redis.txt", setup: "own-keys", figure: "cycles/s"},
	{name: "bench-redis-processes", title: "Redis: 8 processes that want one lock", unit: "cycles per second",
		better: longer, file: "redis.txt", setup: "processes", figure: "cycles/s"},
	{name: "bench-redis-held", title: "Redis: 10,000 locks held by one process", unit: "bytes of memory per lock",
		better: shorter, file: "redis.txt", setup: "held", figure: "heap-B/lock"},
	{name: "bench-etcd-own", title: "etcd: 64 goroutines, each with a lock of its own", unit: "cycles per second",
		better: longer, file: "etcd.txt", setup: "own-keys", figure: "cycles/s"},
	{name: "bench-etcd-one", title: "etcd: 64 goroutines that want one lock", unit: "cycles per second",
		better: longer, file: "etcd.txt", setup: "one-key", figure: "cycles/s"},
	{name: "bench-postgres-own", title: "PostgreSQL: 64 goroutines, each with a lock of its own", unit: "cycles per second",
		better: longer, file: "postgres.txt", setup: "own-keys", figure: "cycles/s"},
}

// drawFrom reads a chart's figures, and draws it.
func (c chart) drawFrom(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, "figures", "bench", c.file))
	if err != nil {
		return nil, err
	}
	bars, err := c.readBars(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.file, err)
	}
	return c.draw(bars), nil
}

// readBars returns the medians of the chart's setup and figure.
func (c chart) readBars(text string) (bars []bar, err error) {
	f := readFigures(text, "Locks/")
	for _, locker := range f.lockers[c.setup] {
		median := f.median(c.setup, locker, c.figure, "now")
		if median == "" { // it has no such figure, or only the version before has it
			continue
		}
		value, err := strconv.ParseFloat(median, 64)
		if err != nil {
			return nil, fmt.Errorf("the figure of %s: %w", locker, err)
		}
		bars = append(bars, bar{locker, value})
	}
	if len(bars) == 0 {
		return nil, fmt.Errorf("no figure of the setup %q", c.setup)
	}
	return bars, nil
}
