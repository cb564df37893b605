package cli

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestURLs: docs/urls.md names each scheme that the command knows, and exactly the options that it accepts.
func TestURLs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/urls.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		title, rest, _ := strings.Cut(section, "\n")
		for scheme := range strings.SplitSeq(title, ", ") {
			sections[scheme] = rest
		}
	}
	cells, names := regexp.MustCompile("(?m)^\\| (`.+?`) \\|"), regexp.MustCompile("`(.+?)`")
	for _, scheme := range driver.Schemes() {
		section, ok := sections[scheme]
		if !ok {
			t.Errorf("%s has no section", scheme)
			continue
		}
		_, table, _ := strings.Cut(section, "\n| option |") // a section may have others
		table, _, _ = strings.Cut(table, "\n\n")
		var said []string
		for _, cell := range cells.FindAllStringSubmatch(table, -1) {
			for _, name := range names.FindAllStringSubmatch(cell[1], -1) {
				said = append(said, name[1])
			}
		}
		slices.Sort(said)
		place := "://host/x"
		if scheme == "file" {
			place = ":///x"
		}
		_, err := driver.Open(t.Context(), scheme+place+"?no-such-option=1")
		if err == nil {
			t.Errorf("%s accepts any option", scheme)
			continue
		}
		if _, known, _ := strings.Cut(err.Error(), "known are: "); known != strings.Join(said, ", ") {
			t.Errorf("%s accepts the options %s, but docs/urls.md has %s", scheme, known, strings.Join(said, ", "))
		}
	}
}
