package main

import (
	"strings"
	"testing"
)

// TestSpread: medians with the smallest and the largest, ratios within a round, and figures that one version lacks.
func TestSpread(t *testing.T) {
	now, err := read(strings.NewReader(`goos: linux
BenchmarkLocks/alone/floor-2   10  100 ns/op  10 cycles/s
BenchmarkLocks/alone/ours-2    10  200 ns/op   4 cycles/s
BenchmarkNew                    1    7 s
BenchmarkLocks/alone/bad-2      --- FAIL: BenchmarkLocks/alone/bad-2
PASS
BenchmarkLocks/alone/floor-2   10  200 ns/op  20 cycles/s
BenchmarkLocks/alone/ours-2    10  500 ns/op   6 cycles/s
`))
	if err != nil {
		t.Fatal(err)
	}
	before, err := read(strings.NewReader(`BenchmarkLocks/alone/ours-2 5 400 ns/op
BenchmarkOld 1 0 s
BenchmarkLocks/alone/ours-2 5 500 ns/op
`))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := write(&out, now, before); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"benchmark unit now of the floor before now / before",
		"Locks/alone/floor ns/op 150 (100-200) - - -",
		"Locks/alone/floor cycles/s 15 (10-20) - - -",
		"Locks/alone/ours ns/op 350 (200-500) 2.25 (2-2.5) 450 (400-500) 0.75 (0.5-1)",
		"Locks/alone/ours cycles/s 5 (4-6) 0.35 (0.3-0.4) - -",
		"New s 7 - - -",
		"Old s - - 0 -",
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
	if _, err := read(strings.NewReader("BenchmarkX 1 many ns/op")); err == nil {
		t.Error("a figure that is no number is no error")
	}
}
