package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// folders are those of the sections that are about one part of the code.
var folders = map[string]string{"Files": "file", "etcd": "etcd", "ZooKeeper": "zookeeper", "Consul": "consul",
	"PostgreSQL": "postgres", "MySQL and MariaDB": "mysql", "NATS": "nats", "DynamoDB": "dynamodb",
	"Cloud Storage": "gcs", "S3": "s3", "Kubernetes": "kubernetes", "Redis": "redis", "The command": "holdfast"}

var (
	heading = regexp.MustCompile(`^(##+) (.+)$`)
	proof   = regexp.MustCompile("^(  - `((?:Test|suite: |mutant: )[^`]+)`)")
	anyName = regexp.MustCompile("`((?:Test[A-Z]|suite: |mutant: )[^`]*)`")
	label   = regexp.MustCompile(`(?m)^\*\*([^*]+)\.\*\*`)
)

// completeDocument writes behind each proof of a document what it checks. It fails if the document names something that
// does not exist, or leaves out a mutant of the simulation.
func completeDocument(document string, p *proofs) (string, error) {
	var completed strings.Builder
	var faults []error
	folder := ""
	named := map[string]bool{}
	for line := range strings.Lines(document) {
		line = strings.TrimSuffix(line, "\n")
		if m := heading.FindStringSubmatch(line); m != nil && m[1] == "##" {
			folder = folders[m[2]]
		}
		if m := proof.FindStringSubmatch(line); m != nil {
			text, err := p.describe(m[2], folder)
			if err != nil {
				faults = append(faults, err)
			}
			line = m[1] + ": " + text
			if tests := p.tests[m[2]]; len(tests) > 0 {
				line = m[1] + " in " + text
			}
			named[m[2]] = true
		} else {
			for _, m := range anyName.FindAllStringSubmatch(line, -1) {
				if _, err := p.describe(m[1], ""); err != nil {
					faults = append(faults, err)
				}
				named[m[1]] = true
			}
		}
		completed.WriteString(line + "\n")
	}
	for _, m := range p.simulated {
		if !named["mutant: "+m] {
			faults = append(faults, fmt.Errorf("EVIDENCE.md does not name %q", "mutant: "+m))
		}
	}
	return completed.String(), errors.Join(faults...)
}

// unproved lists the promises of GUARANTEES.md, by their labels such as "**Order.**", that have no section in
// EVIDENCE.md, or one that names neither a test nor a case of the suite.
func unproved(guarantees, evidence string) (labels []string) {
	proved := map[string]bool{}
	title, chapter := "", ""
	for line := range strings.Lines(evidence) {
		line = strings.TrimSuffix(line, "\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			title = m[2]
			if m[1] == "##" {
				chapter = title
			}
		} else if proof.MatchString(line) && !strings.HasPrefix(line, "  - `mutant: ") {
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
