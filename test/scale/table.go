package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// table is a table that is printed line by line.
type table struct {
	columns []string
	lines   [][]string
}

func newTable(title string, columns ...string) *table {
	t := &table{columns: columns}
	fmt.Printf("\n%s\n", title)
	t.print(columns)
	return t
}

func (t *table) add(cells ...string) {
	t.lines = append(t.lines, cells)
	t.print(cells)
}

func (t *table) print(cells []string) {
	for i, c := range cells {
		fmt.Printf("%*s  ", max(len(t.columns[i]), 9), c)
	}
	fmt.Println()
}

// end prints the figures of all lines as one line of a table in Markdown. A figure that is the same for all sizes is
// there once.
func (t *table) end(name string) {
	if len(t.lines) == 0 {
		return
	}
	cells := []string{name}
	for i := range t.columns {
		var all []string
		for _, line := range t.lines {
			all = append(all, line[i])
		}
		if len(slices.Compact(slices.Clone(all))) == 1 {
			all = all[:1]
		}
		cells = append(cells, strings.Join(all, " / "))
	}
	fmt.Printf("| %s |\n", strings.Join(cells, " | "))
}

// unknown is written for what was not counted.
const unknown = "not counted"

// perUnit is a figure divided by a number of things, with three digits at least; unknown if there are no such things.
func perUnit(value float64, n float64) string {
	if n == 0 {
		return unknown
	}
	value /= n
	switch {
	case value >= 100 || value <= -100:
		return withCommas(int64(value))
	case value >= 10:
		return strconv.FormatFloat(value, 'f', 1, 64)
	case value >= 0.01 || value == 0:
		return strconv.FormatFloat(value, 'f', 2, 64)
	}
	return strconv.FormatFloat(value, 'g', 2, 64)
}

// withCommas writes a number with commas between thousands.
func withCommas(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func millis(d time.Duration) string { return perUnit(float64(d.Nanoseconds()), 1e6) }
