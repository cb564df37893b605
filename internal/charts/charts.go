package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// chart is one picture: a bar per line of a table.
type chart struct {
	name   string // of the picture
	title  string
	unit   string
	better string // which bars are good: "longer is better"
	file   string // in figures/bench
	// line finds the lines. Its first group is what is measured, and its second the figure.
	line *regexp.Regexp
	// section is how the heading of the table begins, if the file has several; the table ends with an empty line.
	section string
}

// bar is one line of a table.
type bar struct {
	label string
	value float64
}

// tableLine is a line of a table that a benchmark of ours prints: a name, two spaces or more, and figures.
var tableLine = regexp.MustCompile(`^(\S+(?: \S+)*) {2,}([\d.]+)`)

// benchmarkLine returns an expression for the lines of go test -bench whose names begin so, and for a unit.
func benchmarkLine(prefix, unit string) *regexp.Regexp {
	return regexp.MustCompile(`^Benchmark` + prefix + `/(\S+)-\d+\s.*?([\d.]+) ` + regexp.QuoteMeta(unit) + `\b`)
}

const (
	longer  = "longer is better"
	shorter = "shorter is better"
)

// charts are all pictures.
var charts = []chart{
	{name: "bench-redis-own", title: "Redis: 64 goroutines, each with a lock of its own", unit: "cycles per second",
		better: longer, file: "redis.txt", line: tableLine, section: "own keys, 64 goroutines"},
	{name: "bench-redis-processes", title: "Redis: 8 processes of 8 goroutines that want one lock", unit: "turns per second",
		better: longer, file: "redis.txt", line: tableLine, section: "one key, 8 processes of 8 goroutines"},
	{name: "bench-redis-held", title: "Redis: 10,000 locks held by one process", unit: "bytes of memory per lock",
		better: shorter, file: "redis.txt", line: tableLine, section: "10000 held leases"},
	{name: "bench-etcd-own", title: "etcd: 64 goroutines, each with a lock of its own", unit: "cycles per second",
		better: longer, file: "etcd.txt", line: benchmarkLine("Cycle/own/64", "cycles/s")},
	{name: "bench-etcd-one", title: "etcd: 64 goroutines that want one lock", unit: "cycles per second",
		better: longer, file: "etcd.txt", line: benchmarkLine("Cycle/one/64", "cycles/s")},
	{name: "bench-postgres-own", title: "PostgreSQL: 64 goroutines, each with a lock of its own", unit: "cycles per second",
		better: longer, file: "postgres.txt", line: benchmarkLine("Parallel", "cycles/s")},
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

// readBars finds the lines of the chart's table.
func (c chart) readBars(text string) (bars []bar, err error) {
	inside := c.section == ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if c.section != "" && strings.HasPrefix(line, c.section+" ") {
			inside = true
			continue
		}
		if c.section != "" && line == "" {
			inside = false
		}
		m := c.line.FindStringSubmatch(line)
		if !inside || m == nil {
			continue
		}
		value, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, fmt.Errorf("the line %q: %w", line, err)
		}
		bars = append(bars, bar{m[1], value})
	}
	if len(bars) == 0 {
		return nil, fmt.Errorf("no line of the table %q", c.title)
	}
	return bars, nil
}
