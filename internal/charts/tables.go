package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// document is the file with the tables.
const document = "figures/performance.md"

// measuredStore is a store whose locks are measured in the setups of internal/benchtest.
type measuredStore struct {
	file   string // in figures/bench
	prefix string // of its benchmarks' names
	title  string
}

// measuredStores are the lines of the tables.
var measuredStores = []measuredStore{
	{"redis.txt", "Locks/", "Redis"},
	{"postgres.txt", "Locks/", "PostgreSQL"},
	{"etcd.txt", "Locks/", "etcd, 3 members"},
	{"zookeeper.txt", "Locks/", "ZooKeeper, 3 servers"},
	{"file.txt", "Locks/file/", "files"},
	{"mysql.txt", "Locks/", "MariaDB"},
	{"nats.txt", "Locks/sync/", "NATS, `sync_interval: always`"},
	{"nats.txt", "Locks/lazy/", "NATS, as it is by default"},
	{"consul.txt", "Locks/", "Consul"},
	{"kubernetes.txt", "Locks/", "Kubernetes"},
	{"dynamodb.txt", "Locks/", "DynamoDB, emulated"},
	{"s3.txt", "Locks/", "S3, simulated"},
	{"gcs.txt", "Locks/", "Cloud Storage, emulated"},
	{"azure.txt", "Locks/", "Azure Blob Storage, emulated"},
}

// table is one table of the document. It stands between "<!-- table: name -->" and "<!-- end of table -->".
type table struct {
	name    string // of the setup
	files   string // how the names of its files begin, before that of the store
	columns []string
	lines   func(*figures) [][]string // of one store; without its title
}

var tables = []table{
	{"alone", "", singleColumns, func(f *figures) [][]string { return f.single("alone") }},
	{"own-keys", "", singleColumns, func(f *figures) [][]string { return f.single("own-keys") }},
	{"one-key", "", []string{"floor", "plain", "fair", "fair, of plain", "plain, now / before", "fair, now / before",
		"max/min: plain, fair", "fastest other client, its max/min"}, (*figures).oneKey},
	{"processes", "", []string{"plain", "fair", "plain, now / before", "fair, now / before", "max/min: plain, fair",
		"CPU in us, of client and server: plain", "fair", "fastest other client, its max/min"}, (*figures).processes},
	{"hand-overs", "", []string{"floor: gap, us", "plain: gap, us", "p99", "fair: gap, us", "p99",
		"plain, now / before", "fair, now / before", "max/min: plain, fair", "requests/turn: floor, plain, fair",
		"fastest other client: gap, max/min"}, (*figures).handOvers},
	{"slowest", "slowest-", []string{"own locks: mean, ms", "p99, ms", "one lock, plain: p99, ms", "p99, in rounds",
		"fair: p99, ms", "p99, in rounds"}, (*figures).slowest},
	{"held", "", []string{"client", "s to take", "requests/min", "goroutines", "heap B per lock", "resident B per lock",
		"us/s per lock, of client and server", "heap, now / before", "requests, now / before"}, (*figures).held},
}

var singleColumns = []string{"floor, cycles/s", "Holdfast, cycles/s", "of the floor", "client's CPU, of the floor",
	"now / before", "fastest other client, of the floor"}

// figures has what was measured on one store, as internal/spread writes it: for each benchmark and unit the cells of
// its columns.
type figures struct {
	cells   map[string]map[string]string // by "setup/locker unit", then by the column's title
	lockers map[string][]string          // by setup, in the order of the file
}

var betweenCells = regexp.MustCompile(` {2,}`)

// readFigures reads the figures of the benchmarks whose names begin with a prefix.
func readFigures(text, prefix string) *figures {
	f := &figures{cells: map[string]map[string]string{}, lockers: map[string][]string{}}
	var titles []string
	for line := range strings.Lines(text) {
		cells := betweenCells.Split(strings.TrimSpace(line), -1)
		if cells[0] == "benchmark" {
			titles = cells
			continue
		}
		name, ok := strings.CutPrefix(cells[0], prefix)
		if !ok || len(cells) > len(titles) {
			continue
		}
		setup, locker, _ := strings.Cut(name, "/")
		if !slices.Contains(f.lockers[setup], locker) {
			f.lockers[setup] = append(f.lockers[setup], locker)
		}
		row := map[string]string{}
		for i, c := range cells {
			row[titles[i]] = c
		}
		f.cells[name+" "+cells[1]] = row
	}
	return f
}

// get returns a cell: the median with the smallest and the largest, or nothing.
func (f *figures) get(setup, locker, unit, column string) string {
	return strings.TrimPrefix(f.cells[setup+"/"+locker+" "+unit][column], "-")
}

// median returns the median of a cell alone.
func (f *figures) median(setup, locker, unit, column string) string {
	m, _, _ := strings.Cut(f.get(setup, locker, unit, column), " ")
	return m
}

// now returns the present median, with commas between thousands.
func (f *figures) now(setup, locker, unit string) string {
	m := f.median(setup, locker, unit, "now")
	if v, err := strconv.ParseFloat(m, 64); err == nil && v >= 100 {
		return formatValue(v)
	}
	return m
}

// fastest returns the other client that makes the most cycles per second.
func (f *figures) fastest(setup string) (locker string) {
	most := 0.0
	for _, l := range f.lockers[setup] {
		v, _ := strconv.ParseFloat(f.median(setup, l, "cycles/s", "now"), 64)
		if isOtherClient(l) && v > most {
			locker, most = l, v
		}
	}
	return locker
}

func isOtherClient(locker string) bool {
	for _, prefix := range []string{"holdfast", "floor", "scripts-", "hand-over"} {
		if strings.HasPrefix(locker, prefix) {
			return false
		}
	}
	return true
}

func (f *figures) single(setup string) [][]string {
	other := f.fastest(setup)
	if other != "" {
		other += " " + f.median(setup, other, "cycles/s", "of the floor")
	}
	return [][]string{{f.now(setup, "floor", "cycles/s"), f.now(setup, "holdfast", "cycles/s"),
		f.get(setup, "holdfast", "cycles/s", "of the floor"), f.get(setup, "holdfast", "client-us/op", "of the floor"),
		f.get(setup, "holdfast", "cycles/s", "now / before"), other}}
}

func (f *figures) oneKey() [][]string {
	const setup = "one-key"
	plain, _ := strconv.ParseFloat(f.median(setup, "holdfast", "cycles/s", "now"), 64)
	fair, _ := strconv.ParseFloat(f.median(setup, "holdfast-fair", "cycles/s", "now"), 64)
	part := ""
	if fair > 0 {
		part = fmt.Sprintf("%.2f", fair/plain)
	}
	return [][]string{{f.now(setup, "floor", "cycles/s"), f.now(setup, "holdfast", "cycles/s"),
		f.now(setup, "holdfast-fair", "cycles/s"), part,
		f.get(setup, "holdfast", "cycles/s", "now / before"), f.get(setup, "holdfast-fair", "cycles/s", "now / before"),
		f.pair(setup, "max/min"), f.describeFastest(setup)}}
}

func (f *figures) processes() [][]string {
	const setup = "processes"
	cpu := func(locker string) string {
		return join(f.now(setup, locker, "client-us/op"), f.now(setup, locker, "server-us/op"))
	}
	return [][]string{{f.now(setup, "holdfast", "cycles/s"), f.now(setup, "holdfast-fair", "cycles/s"),
		f.get(setup, "holdfast", "cycles/s", "now / before"), f.get(setup, "holdfast-fair", "cycles/s", "now / before"),
		f.pair(setup, "max/min"), cpu("holdfast"), cpu("holdfast-fair"), f.describeFastest(setup)}}
}

func (f *figures) handOvers() [][]string {
	const setup = "hand-overs"
	other := f.fastest(setup)
	if other != "" {
		other += " " + join(f.now(setup, other, "gap-us"), f.now(setup, other, "max/min"))
	}
	return [][]string{{f.now(setup, "floor", "gap-us"),
		f.now(setup, "holdfast", "gap-us"), f.now(setup, "holdfast", "gap-p99-us"),
		f.now(setup, "holdfast-fair", "gap-us"), f.now(setup, "holdfast-fair", "gap-p99-us"),
		f.get(setup, "holdfast", "gap-us", "now / before"), f.get(setup, "holdfast-fair", "gap-us", "now / before"),
		f.pair(setup, "max/min"), join(f.now(setup, "floor", "requests/turn"), f.pair(setup, "requests/turn")), other}}
}

func (f *figures) slowest() [][]string {
	mean := ""
	if perSecond, _ := strconv.ParseFloat(f.median("own-keys", "holdfast", "cycles/s", "now"), 64); perSecond > 0 {
		mean = fmt.Sprintf("%.3g", callers*1e3/perSecond)
	}
	return [][]string{{mean, f.now("own-keys", "holdfast", "p99-ms"),
		f.now("one-key", "holdfast", "p99-ms"), f.now("one-key", "holdfast", "p99/round"),
		f.now("one-key", "holdfast-fair", "p99-ms"), f.now("one-key", "holdfast-fair", "p99/round")}}
}

// callers is how many goroutines take locks in the setups "own-keys" and "one-key".
const callers = 64

func (f *figures) held() (lines [][]string) {
	const setup = "held"
	for _, l := range f.lockers[setup] {
		lines = append(lines, []string{l, f.now(setup, l, "s-to-take"), f.now(setup, l, "requests/min"),
			f.now(setup, l, "goroutines"), f.now(setup, l, "heap-B/lock"), f.now(setup, l, "resident-B/lock"),
			join(f.now(setup, l, "client-us/s/lock"), f.now(setup, l, "server-us/s/lock")),
			f.get(setup, l, "heap-B/lock", "now / before"), f.get(setup, l, "requests/min", "now / before")})
	}
	return lines
}

// pair returns a figure of the plain mutex and of the fair one.
func (f *figures) pair(setup, unit string) string {
	return join(f.now(setup, "holdfast", unit), f.now(setup, "holdfast-fair", unit))
}

func (f *figures) describeFastest(setup string) string {
	other := f.fastest(setup)
	if other == "" {
		return ""
	}
	return other + " " + join(f.now(setup, other, "cycles/s"), f.now(setup, other, "max/min"))
}

// join writes figures with a comma between them.
func join(some ...string) string {
	return strings.Join(slices.DeleteFunc(some, func(s string) bool { return s == "" }), ", ")
}

// fillTables returns the document with the tables of the figures in figures/bench.
func fillTables(root string, text []byte) (filled []byte, err error) {
	for _, t := range tables {
		if text, err = fillTable(root, text, t.name, t.write); err != nil {
			return nil, err
		}
	}
	for _, t := range scaleTables {
		if text, err = fillTable(root, text, t.name, t.write); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// fillTable returns the document with one table.
func fillTable(root string, text []byte, name string, write func(root string) ([]byte, error)) ([]byte, error) {
	written, err := write(root)
	if err != nil {
		return nil, err
	}
	const end = "<!-- end of table -->"
	before, rest, ok := bytes.Cut(text, []byte("<!-- table: "+name+" -->\n"))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !ok || !closed {
		return nil, fmt.Errorf("%s has no place for the table %q", document, name)
	}
	return fmt.Appendf(nil, "%s<!-- table: %s -->\n%s%s%s", before, name, written, end, after), nil
}

// write returns a table in Markdown.
func (t table) write(root string) ([]byte, error) {
	var out bytes.Buffer
	writeHead(&out, append([]string{"store"}, t.columns...))
	for _, s := range measuredStores {
		text, err := readMeasured(root, t.files+s.file)
		if err != nil {
			return nil, err
		}
		for _, line := range t.lines(readFigures(string(text), s.prefix)) {
			if strings.Join(line, "") != "" {
				fmt.Fprintf(&out, "| %s | %s |\n", s.title, strings.Join(line, " | "))
			}
		}
	}
	return out.Bytes(), nil
}

// readMeasured reads a file of figures/bench. That of a store which was not measured yet is empty.
func readMeasured(root, file string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, "figures", "bench", file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// writeHead writes the titles of a table's columns.
func writeHead(out *bytes.Buffer, columns []string) {
	fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
}
