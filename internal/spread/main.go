// Command spread prints what several rounds of benchmarks have in common: of each figure the median, with the smallest
// and the largest in brackets. Its arguments are files with what "go test -bench" printed in all rounds: by the present
// version, and by an earlier one, if that was measured in the same rounds.
//
// The ratio to the floor is shown for a figure next to one of the same benchmark that is called "floor". A ratio is
// that of two figures of one round, since other work on the machine moves all figures of a round.
package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"log"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

func main() {
	if len(os.Args) != 2 && len(os.Args) != 3 {
		log.Fatal("usage: spread NOW [BEFORE]")
	}
	var versions []*figures
	for _, file := range os.Args[1:] {
		f, err := os.Open(file)
		if err != nil {
			log.Fatal(err)
		}
		v, err := read(f)
		if err != nil {
			log.Fatal(err)
		}
		versions = append(versions, v)
	}
	if len(versions) == 1 {
		versions = append(versions, nil)
	}
	if err := write(os.Stdout, versions[0], versions[1]); err != nil {
		log.Fatal(err)
	}
}

// key is one kind of figure.
type key struct{ name, unit string }

// figures has what all rounds of a version have measured.
type figures struct {
	keys   []key // in the order of their first appearance
	values map[key][]float64
}

// cores is what go test adds to a name: the number of processors, if it is not 1.
var cores = regexp.MustCompile(`-\d+$`)

// read reads the lines of benchmarks: a name, how often it was run, and pairs of a figure and its unit.
func read(r io.Reader) (*figures, error) {
	f := &figures{values: map[key][]float64{}}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 4 || len(words)%2 != 0 || !strings.HasPrefix(words[0], "Benchmark") ||
			slices.Contains(words, "FAIL:") { // a benchmark that failed has no figures
			continue
		}
		name := cores.ReplaceAllString(strings.TrimPrefix(words[0], "Benchmark"), "")
		for pair := range slices.Chunk(words[2:], 2) {
			value, err := strconv.ParseFloat(pair[0], 64)
			if err != nil {
				return nil, fmt.Errorf("the line %q: %w", lines.Text(), err)
			}
			k := key{name, pair[1]}
			if f.values[k] == nil {
				f.keys = append(f.keys, k)
			}
			f.values[k] = append(f.values[k], value)
		}
	}
	return f, lines.Err()
}

// write writes a line for each figure. before may be nil. A figure that only one version has is shown alone.
func write(out io.Writer, now, before *figures) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "benchmark\tunit\tnow\tof the floor")
	keys := slices.Clone(now.keys)
	if before != nil {
		fmt.Fprint(t, "\tbefore\tnow / before")
		for _, k := range before.keys {
			if now.values[k] == nil {
				keys = append(keys, k)
			}
		}
	}
	fmt.Fprintln(t)
	for _, k := range keys {
		floor := key{path.Dir(k.name) + "/floor", k.unit}
		cells := []string{k.name, k.unit, spread(now.values[k]), "-"}
		if floor != k {
			cells[3] = spread(ratios(now.values[k], now.values[floor]))
		}
		if before != nil {
			cells = append(cells, spread(before.values[k]), spread(ratios(now.values[k], before.values[k])))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// ratios returns the ratio in each round that both have and in which it has a value.
func ratios(of, to []float64) (all []float64) {
	for i := range min(len(of), len(to)) {
		if to[i] != 0 {
			all = append(all, of[i]/to[i])
		}
	}
	return all
}

// spread returns the median, and in brackets the smallest and the largest if there are several.
func spread(values []float64) string {
	switch len(values) {
	case 0:
		return "-"
	case 1:
		return format(values[0])
	}
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare)
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + median) / 2
	}
	return fmt.Sprintf("%s (%s-%s)", format(median), format(sorted[0]), format(sorted[len(sorted)-1]))
}

// format writes three digits, and all digits before the point.
func format(v float64) string {
	if v >= 100 || v <= -100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
