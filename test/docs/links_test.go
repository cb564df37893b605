// Package docs tests the documents of the repository.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

// TestLinks: each link of a document to another file, or to a heading, leads somewhere.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	checked := 0
	for _, file := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(readDocument(t, file), -1) {
			path, heading, hasHeading := strings.Cut(m[1], "#")
			if strings.Contains(path, ":") {
				continue // a URL
			}
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			checked++
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s does not exist", file, m[1])
			} else if hasHeading && !hasHeadingNamed(readDocument(t, target), heading) {
				t.Errorf("%s: %s has no such heading", file, m[1])
			}
		}
	}
	if checked < 50 {
		t.Errorf("the documents have only %d links", checked)
	}
}

// documents are the files with the suffix .md, except those of programs that were installed below bin.
func documents(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == ".git"):
			return fs.SkipDir
		case !d.IsDir() && filepath.Ext(path) == ".md":
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// hasHeadingNamed reports whether a document has a heading to which #name leads: the heading in lower case, with dashes
// for spaces and without punctuation.
func hasHeadingNamed(document, name string) bool {
	for line := range strings.Lines(document) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return r
			}
			return -1
		}, heading)
		if anchor == name {
			return true
		}
	}
	return false
}

func readDocument(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
