// Command urltables writes the tables of docs/urls.md: which options the URL of a store can have, as the store declares
// them. A table stands behind a line "<!-- options of SCHEME -->", up to the next empty line.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	_ "github.com/holdfast-go/holdfast/cmd/holdfast/stores"
	"github.com/holdfast-go/holdfast/driver"
)

//go:generate go run .

// document is docs/urls.md as seen from this folder.
var document = filepath.Join("..", "..", "..", "..", "docs", "urls.md")

func main() {
	text, err := os.ReadFile(document)
	if err == nil {
		var filled string
		if filled, err = fillTables(string(text)); err == nil {
			err = os.WriteFile(document, []byte(filled), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "urltables:", err)
		os.Exit(1)
	}
}

var table = regexp.MustCompile(`(?m)^<!-- options of ([a-z0-9+]+) -->\n(?:.+\n)*`)

// fillTables returns the document with the tables as the stores declare them.
func fillTables(text string) (string, error) {
	var w writer
	var err error
	filled := table.ReplaceAllStringFunc(text, func(old string) string {
		marker, _, _ := strings.Cut(old, "\n")
		scheme := table.FindStringSubmatch(old)[1]
		form, ok := driver.DescribeURL(scheme)
		if !ok {
			err = fmt.Errorf("no store describes the URLs of %s", scheme)
			return old
		}
		return marker + "\n" + w.table(scheme, form.Options)
	})
	return filled, err
}

// writer remembers which store's table explains the options about TLS.
type writer struct {
	tlsScheme string
	tls       []driver.URLOption
}

// row is one line of a table.
type row struct{ names, value, without, means string }

func (w *writer) table(scheme string, options []driver.URLOption) string {
	var rows []row
	add := func(r row) {
		if n := len(rows); n > 0 && rows[n-1].value == r.value && rows[n-1].without == r.without && rows[n-1].means == r.means {
			rows[n-1].names += " " + r.names
			return
		}
		rows = append(rows, r)
	}
	var tls []driver.URLOption
	for _, o := range options {
		r := row{"`" + o.Name + "`", o.DescribeValue(), o.Default, o.Means}
		if len(o.Layouts) > 0 {
			r.means += "; only for `" + strings.Join(o.Layouts, "` and `") + "`"
		}
		if isTLS := strings.HasPrefix(o.Name, "tls"); isTLS {
			tls = append(tls, o)
			if w.isExplained(o) {
				r.value, r.without, r.means = "", "", "as for "+w.tlsScheme
			}
		}
		add(r)
	}
	if w.tls == nil {
		w.tls, w.tlsScheme = tls, scheme
	}
	var b strings.Builder
	b.WriteString("| option | value | by default | means |\n|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.names, r.value, r.without, r.means)
	}
	return b.String()
}

// isExplained reports whether an option about TLS is the same in an earlier table.
func (w *writer) isExplained(o driver.URLOption) bool {
	return slices.ContainsFunc(w.tls, func(e driver.URLOption) bool {
		return e.Name == o.Name && e.DescribeValue() == o.DescribeValue() && e.Default == o.Default && e.Means == o.Means
	})
}
