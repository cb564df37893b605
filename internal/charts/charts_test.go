package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// TestPicturesAreCurrent: the pictures in docs/images show what is in figures/bench.
func TestPicturesAreCurrent(t *testing.T) {
	for _, c := range charts {
		want, err := c.drawFrom("../..")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(c.path("../..")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what %s says: run go run ./internal/charts (%v)", c.name, c.file, err)
		}
		for d := xml.NewDecoder(bytes.NewReader(want)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s is no XML: %v", c.name, err)
			}
		}
		if !bytes.Contains(want, []byte(`class="ours"`)) {
			t.Errorf("%s has no figure of holdfast", c.name)
		}
	}
}

// TestReadBars: only the lines of the chart's own table count, and a table without lines is an error.
func TestReadBars(t *testing.T) {
	c := chart{title: "t", line: tableLine, section: "two"}
	text := "one    a\nx y    1\n\ntwo    cycles/s\nfloor, timed       10.5   3\nholdfast           7\n\nthree    a\nz    9\n"
	bars, err := c.readBars(text)
	if err != nil || len(bars) != 2 || bars[0] != (bar{"floor, timed", 10.5}) || bars[1] != (bar{"holdfast", 7}) {
		t.Errorf("%v %v", bars, err)
	}
	if _, err := c.readBars("one    a\nx    1\n"); err == nil {
		t.Error("a file without the table is no error")
	}
	c = chart{title: "t", line: benchmarkLine("Cycle/own/64", "cycles/s")}
	bars, err = c.readBars("BenchmarkCycle/own/64/floor-2    \t 6698\t 361775 ns/op\t 2764.5 cycles/s\nBenchmarkCycle/own/1/floor-2 1 2 cycles/s\n")
	if err != nil || len(bars) != 1 || bars[0] != (bar{"floor", 2764.5}) {
		t.Errorf("%v %v", bars, err)
	}
}

// TestFormatValue: thousands have commas.
func TestFormatValue(t *testing.T) {
	var got []string
	for _, v := range []float64{7, 999.6, 1234, 1234567} {
		got = append(got, formatValue(v))
	}
	if s := strings.Join(got, " "); s != "7 1,000 1,234 1,234,567" {
		t.Error(s)
	}
}
