package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDoctorTable: docs/doctor.md lists all findings of the code with their severities, and no others. A test of the
// same package expects each.
func TestDoctorTable(t *testing.T) {
	type finding struct{ dir, severity string }
	found := map[string]finding{}
	declared := regexp.MustCompile(`Code:\s+"([a-z0-9-]+)",\s+Severity:\s+driver\.Severity(\w+)`)
	for _, pattern := range []string{"../../store/*/*.go", "../../cmd/holdfast/cli/doctor*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, m := range declared.FindAllStringSubmatch(readDocument(t, file), -1) {
				found[m[1]] = finding{filepath.Dir(file), strings.ToLower(m[2])}
			}
		}
	}
	row := regexp.MustCompile("^\\| `([a-z0-9-]+)` \\| (\\w+) \\|")
	listed := map[string]bool{}
	for line := range strings.Lines(readDocument(t, root+"/docs/doctor.md")) {
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		code := m[1]
		listed[code] = true
		if found[code].severity != m[2] {
			t.Errorf("docs/doctor.md says that %s is %s, and the code %q", code, m[2], found[code].severity)
			continue
		}
		files, _ := filepath.Glob(found[code].dir + "/*_test.go")
		var tests strings.Builder
		for _, file := range files {
			tests.WriteString(readDocument(t, file))
		}
		if !strings.Contains(tests.String(), `"`+code+`"`) {
			t.Errorf("no test of %s expects %s", found[code].dir, code)
		}
	}
	for code := range found {
		if !listed[code] {
			t.Errorf("docs/doctor.md does not list %s", code)
		}
	}
	if len(listed) < 30 {
		t.Errorf("docs/doctor.md lists only %d findings", len(listed))
	}
}
