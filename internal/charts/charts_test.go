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

// TestReadBars: only the figures of the chart's own setup and unit count, and a file without them is an error.
func TestReadBars(t *testing.T) {
	c := chart{setup: "own-keys", figure: "cycles/s"}
	text := "# redis\nbenchmark  unit  now  of the floor\nLocks/own-keys/floor  cycles/s  10.5 (9-11)  -\n" +
		"Locks/own-keys/floor  ns/op  3 (3-3)  -\nLocks/own-keys/holdfast  cycles/s  7 (6-8)  0.67 (0.6-0.7)\n" +
		"Locks/own-keys/gone  cycles/s  -  -  5 (5-5)  -\nLocks/one-key/floor  cycles/s  9 (9-9)  -\n"
	bars, err := c.readBars(text)
	if err != nil || len(bars) != 2 || bars[0] != (bar{"floor", 10.5}) || bars[1] != (bar{"holdfast", 7}) {
		t.Errorf("%v %v", bars, err)
	}
	if _, err := c.readBars("Locks/alone/floor  cycles/s  1 (1-1)  -\n"); err == nil {
		t.Error("a file without the figures is no error")
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
