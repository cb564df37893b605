package main

import (
	"bytes"
	"slices"
	"strings"
)

// scaleTable is a table of the document whose rows test/scale writes: the last line of each of its own tables.
type scaleTable struct {
	name    string
	section string   // how the titles of those tables begin
	files   []string // in figures/bench
	columns []string
}

// scaleFiles has a file for each store, in the order of the tables.
var scaleFiles = []string{"scale-memory.txt", "scale-redis.txt", "scale-etcd.txt", "scale-zookeeper.txt", "scale-consul.txt",
	"scale-postgres.txt", "scale-mysql.txt", "scale-nats.txt", "scale-file.txt", "scale-kubernetes.txt", "scale-dynamodb.txt",
	"scale-s3.txt", "scale-gcs.txt", "scale-azure.txt"}

// sections are how the titles of all tables of test/scale begin.
var sections = []string{"held leases of", "cycles of", "waiters of", "clients of"}

var scaleTables = []scaleTable{
	{"held-leases", "held leases of", scaleFiles, []string{"store", "leases", "TTL", "s to take", "resident B each",
		"heap B each", "goroutines", "requests/s idle", "requests/renewal", "held at the end"}},
	{"cycles", "cycles of", []string{"cycles.txt"}, []string{"store", "cycles", "ms per cycle", "requests per cycle"}},
	{"waiters", "waiters of", scaleFiles, append([]string{"store, mutex", "waiters"}, crowdColumns...)},
	{"clients", "clients of", scaleFiles, append([]string{"store, mutex", "clients"}, crowdColumns...)},
}

var crowdColumns = []string{"in the store", "refused", "resident B each", "heap B each", "goroutines each",
	"requests/s idle", "hand-overs", "gap ms", "mean", "99 %", "requests/hand-over"}

// write returns the table in Markdown.
func (t scaleTable) write(root string) ([]byte, error) {
	var out bytes.Buffer
	writeHead(&out, t.columns)
	for _, file := range t.files {
		text, err := readMeasured(root, file)
		if err != nil {
			return nil, err
		}
		section := ""
		for line := range strings.Lines(string(text)) {
			switch {
			case slices.ContainsFunc(sections, func(s string) bool { return strings.HasPrefix(line, s) }):
				section = line
			case line[0] == '|' && strings.HasPrefix(section, t.section):
				out.WriteString(line)
			}
		}
	}
	return out.Bytes(), nil
}
