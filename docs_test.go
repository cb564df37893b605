package holdfast_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadme: the Go program in the README compiles unchanged.
func TestReadme(t *testing.T) {
	text := readRepoFile(t, "README.md")
	_, rest, found := strings.Cut(text, "```go\n")
	program, _, closed := strings.Cut(rest, "```\n")
	if !found || !closed {
		t.Fatal("the README has no Go program any more")
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mod := strings.Replace(readRepoFile(t, "go.mod"), "module github.com/holdfast-go/holdfast\n", "module readme\n",
		1) +
		"\nrequire github.com/holdfast-go/holdfast v0.0.0\nreplace github.com/holdfast-go/holdfast => " + root + "\n"
	for name, data := range map[string]string{"main.go": program, "go.mod": mod, "go.sum": readRepoFile(t, "go.sum")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "vet", "-mod=mod", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func readRepoFile(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestDoctorTable: docs/doctor.md lists all findings of the code with their severities, and no others. For each, it names
// a test of the same package, which expects it.
func TestDoctorTable(t *testing.T) {
	type finding struct{ dir, severity string }
	found := map[string]finding{}
	declared := regexp.MustCompile(`Code:\s+"([a-z0-9-]+)",\s+Severity:\s+driver\.Severity(\w+)`)
	for _, pattern := range []string{"store/*/*.go", "cmd/holdfast/doctor*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, m := range declared.FindAllStringSubmatch(readRepoFile(t, file), -1) {
				found[m[1]] = finding{filepath.Dir(file), strings.ToLower(m[2])}
			}
		}
	}
	row := regexp.MustCompile("^\\| `([a-z0-9-]+)` \\| (\\w+) \\|.*\\| ([^|]+) \\|$")
	listed := map[string]bool{}
	for line := range strings.Lines(readRepoFile(t, "docs/doctor.md")) {
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
			tests.WriteString(readRepoFile(t, file))
		}
		if !strings.Contains(tests.String(), `"`+code+`"`) {
			t.Errorf("no test of %s expects %s", found[code].dir, code)
		}
		for name := range strings.FieldsSeq(m[3]) {
			if !strings.Contains(tests.String(), "func "+strings.Trim(name, "`")+"(") &&
				!strings.Contains(readRepoFile(t, "cmd/holdfast/doctor_test.go"), "func "+strings.Trim(name, "`")+"(") {
				t.Errorf("%s: there is no test %s", code, name)
			}
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
