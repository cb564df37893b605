package main

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// folders says which folder a section is about, if it is about one part of the code.
var folders = map[string]string{"Files": "file", "etcd": "etcd", "ZooKeeper": "zookeeper", "Consul": "consul",
	"PostgreSQL": "postgres", "MySQL and MariaDB": "mysql", "NATS": "nats", "DynamoDB": "dynamodb",
	"Cloud Storage": "gcs", "S3": "s3", "Azure Blob Storage": "azure", "Kubernetes": "kubernetes", "Redis": "redis", "The command": "holdfast"}

var (
	heading = regexp.MustCompile(`^(##+) (.+)$`)
	anyName = regexp.MustCompile("`(Test[A-Z]\\w*|suite:[^`]+)`")
	label   = regexp.MustCompile(`(?m)^\*\*([^*]+)\.\*\*`)
)

// proofPrefix begins the lines that name what proves the promise above them.
const proofPrefix = "  `"

// writeEvidence writes the document with what each proof checks, and after it the mutants of tests that no promise
// names. It fails if the document names something that does not exist.
func writeEvidence(promises string, p *proofs) (string, error) {
	var w strings.Builder
	var faults []error
	folder := ""
	for line := range strings.Lines(promises) {
		if m := heading.FindStringSubmatch(strings.TrimSpace(line)); m != nil && m[1] == "##" {
			folder = folders[m[2]]
		}
		proves := strings.HasPrefix(line, proofPrefix)
		for _, m := range anyName.FindAllStringSubmatch(line, -1) {
			if proves {
				faults = append(faults, p.describe(&w, m[1], folder))
			} else if len(p.tests[m[1]]) == 0 {
				faults = append(faults, fmt.Errorf("there is no test %s", m[1]))
			}
		}
		if !proves {
			w.WriteString(line)
		}
	}
	p.writeOtherMutants(&w)
	return w.String(), errors.Join(faults...)
}

// writeOtherMutants writes the mutants of tests that were not described, and those of the simulation.
func (p *proofs) writeOtherMutants(w *strings.Builder) {
	w.WriteString("\n## Further rules\n\n")
	for _, name := range slices.Sorted(maps.Keys(p.tests)) {
		for _, t := range p.tests[name] {
			if !p.described[t.id] && p.mutants[t.id] != nil {
				p.describeTest(w, t)
			}
		}
	}
	w.WriteString("\n## Rules of the simulation\n\nThe simulation of whole clients fails with each of these:\n\n")
	for _, m := range p.simulated {
		fmt.Fprintf(w, "- %s\n", m)
	}
}

// unproved lists the promises of GUARANTEES.md, by their labels such as "**Order.**", that have no section in
// promises.md, or one that names neither a test nor a case of the suite.
func unproved(guarantees, promises string) (labels []string) {
	proved := map[string]bool{}
	title, chapter := "", ""
	for line := range strings.Lines(promises) {
		line = strings.TrimSuffix(line, "\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			title = m[2]
			if m[1] == "##" {
				chapter = title
			}
		} else if strings.HasPrefix(line, proofPrefix) {
			proved[title], proved[chapter] = true, true
		}
	}
	for _, m := range label.FindAllStringSubmatch(guarantees, -1) {
		if !proved[m[1]] && !slices.Contains(labels, m[1]) {
			labels = append(labels, m[1])
		}
	}
	return labels
}
