package main

import (
	"bytes"
	"os"
	"slices"
	"testing"
)

// TestTablesAreCurrent: the tables in figures/performance.md show what is in figures/bench.
func TestTablesAreCurrent(t *testing.T) {
	got, err := os.ReadFile("../../" + document)
	if err != nil {
		t.Fatal(err)
	}
	want, err := fillTables("../..", got)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s does not have the figures of figures/bench: run go run ./internal/charts", document)
	}
	if _, err := fillTables("../..", []byte("nothing")); err == nil {
		t.Error("a document without places for tables is no error")
	}
}

// TestFigures: figures are found by setup, locker and unit, with or without a version before.
func TestFigures(t *testing.T) {
	f := readFigures("# redis\n"+
		"benchmark             unit          now               of the floor   before    now / before\n"+
		"Locks/alone/floor     cycles/s      1000 (900-1100)   -              990 (9-9)  1.01 (1-1.1)\n"+
		"Locks/alone/redsync   cycles/s      500 (9-9)         0.5 (0.4-0.6)  500 (9-9)  1 (1-1)\n"+
		"Locks/alone/holdfast  cycles/s      12000 (9-9)       12 (11-13)     6000 (9-9)  2 (1.9-2.1)\n"+
		"Locks/alone/holdfast  client-us/op  50 (9-9)          0.7 (0.6-0.8)  60 (9-9)  0.8 (0.7-0.9)\n"+
		"Locks/held/holdfast   s-to-take     0.5 (9-9)         -              -\n", "Locks/")
	if got, want := f.single("alone"), []string{"1,000", "12,000", "12 (11-13)", "0.7 (0.6-0.8)", "2 (1.9-2.1)",
		"redsync 0.5"}; len(got) != 1 || !slices.Equal(got[0], want) {
		t.Errorf("%q", got)
	}
	if got := f.held(); len(got) != 1 || got[0][0] != "holdfast" || got[0][1] != "0.5" || got[0][7] != "" {
		t.Errorf("%q", got)
	}
	if got := readFigures("benchmark  unit  now\nLocks/alone/floor  cycles/s  7\n", "Locks/").single("alone"); got[0][0] != "7" {
		t.Errorf("%q", got)
	}
}
