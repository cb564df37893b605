package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

const root = "../../../.."

// TestTables: the tables of docs/urls.md are what the stores declare, and each scheme of the command is in one of its
// sections, with the shape of its URLs. "go generate" in this folder writes them.
func TestTables(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	filled, err := fillTables(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if filled != string(text) {
		t.Error("docs/urls.md is not as the stores declare it: run go generate in cmd/holdfast/internal/urltables")
	}
	sections := map[string]string{}
	for section := range strings.SplitSeq(filled, "\n## ") {
		title, rest, _ := strings.Cut(section, "\n")
		for scheme := range strings.SplitSeq(title, ", ") {
			sections[scheme] = rest
		}
	}
	for _, scheme := range driver.Schemes() {
		form, ok := driver.DescribeURL(scheme)
		if !ok {
			t.Errorf("%s does not describe its URLs", scheme)
			continue
		}
		if !strings.Contains(sections[scheme], "`"+form.Shape+"`") {
			t.Errorf("the section of %s does not say that a URL looks like %s", scheme, form.Shape)
		}
		marked := table.FindStringSubmatch(sections[scheme])
		if marked == nil {
			t.Errorf("the section of %s has no table", scheme)
			continue
		}
		if shown, _ := driver.DescribeURL(marked[1]); !reflect.DeepEqual(shown.Options, form.Options) {
			t.Errorf("the table of %s is that of %s, which has other options", scheme, marked[1])
		}
	}
}

// TestDeclarations: each option has one declaration, which says what values it has and what it is, without a full stop.
func TestDeclarations(t *testing.T) {
	t.Parallel()
	for _, scheme := range driver.Schemes() {
		form, _ := driver.DescribeURL(scheme)
		seen := map[string]bool{}
		for _, o := range form.Options {
			if seen[o.Name] {
				t.Errorf("%s declares %s twice", scheme, o.Name)
			}
			seen[o.Name] = true
			if o.Type == "" || o.Means == "" || strings.HasSuffix(o.Means, ".") || strings.Count(o.Means+o.Default, "`")%2 != 0 {
				t.Errorf("%s: %+v", scheme, o)
			}
		}
	}
}

var (
	storeURL = regexp.MustCompile("[a-z][a-z0-9+]*://[^\\s\"'`<>()\\\\]*")
	unusual  = regexp.MustCompile(`[$…\[\]{}|*]|\.\.\.|%[sdv]`)
)

// TestDocumentedURLs: every URL of a store in the documents, the examples and ops can be read. What stands for
// something else, such as $HOST, host:port and [...], is left out.
func TestDocumentedURLs(t *testing.T) {
	t.Parallel()
	files := 0
	count := map[string]int{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist", "figures", "node_modules"}, name):
			return fs.SkipDir
		case d.IsDir() || !isDocument(name):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for _, found := range storeURL.FindAllString(string(text), -1) {
			raw := strings.TrimRight(found, ".,;:")
			scheme, place, _ := strings.Cut(raw, "://")
			if !slices.Contains(driver.Schemes(), scheme) || place == "" || unusual.MatchString(raw) || isPlaceholder(raw) {
				continue
			}
			count[scheme]++
			if err := driver.CheckURL(withFiles(t, raw)); err != nil {
				t.Errorf("%s: %s: %v", name, raw, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(count) < 12 {
		t.Errorf("%d files have URLs of these stores alone: %v", files, count)
	}
}

// isDocument reports whether a file shows URLs to users: a document, an example or what ops has.
func isDocument(name string) bool {
	top, _, _ := strings.Cut(filepath.ToSlash(name), "/")
	return strings.HasSuffix(name, ".md") && top != "CHANGELOG.md" || top == "examples" || top == "ops"
}

// isPlaceholder reports whether a URL has words in the place of its hosts or its port.
func isPlaceholder(raw string) bool {
	return strings.Contains(raw, ":PORT") || strings.Contains(raw, ":port") || strings.Contains(raw, "://host,host")
}

// withFiles gives options that name files one that exists.
func withFiles(t *testing.T, raw string) string {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`\b(password-file|token-file)=[^&]*`).ReplaceAllString(raw, "$1="+file)
}
