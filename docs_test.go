package holdfast_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
)

// TestReadme promises that the program in the README compiles as it stands there.
func TestReadme(t *testing.T) {
	text := read(t, "README.md")
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
	mod := strings.Replace(read(t, "go.mod"), "module github.com/holdfast-go/holdfast\n", "module readme\n", 1) +
		"\nrequire github.com/holdfast-go/holdfast v0.0.0\nreplace github.com/holdfast-go/holdfast => " + root + "\n"
	for name, data := range map[string]string{"main.go": program, "go.mod": mod, "go.sum": read(t, "go.sum")} {
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

// TestGuarantees promises that every test that GUARANTEES.md names exists: each `TestName` as a test of this repository,
// each `suite: name` as a case of the conformance suite, each `mutant: name` in the simulation.
func TestGuarantees(t *testing.T) {
	cases := map[string]bool{}
	for _, c := range drivertest.Cases() {
		cases[c.Name] = true
	}
	var sources strings.Builder
	for _, pattern := range []string{"*_test.go", "*/*/*_test.go", "*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			sources.WriteString(read(t, f))
		}
	}
	named := 0
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(read(t, "GUARANTEES.md"), -1) {
		name := m[1]
		exists := true
		if c, ok := strings.CutPrefix(name, "suite: "); ok {
			exists = cases[c]
		} else if c, ok := strings.CutPrefix(name, "mutant: "); ok {
			exists = strings.Contains(sources.String(), `{name: "`+c+`"`)
		} else if strings.HasPrefix(name, "Test") {
			exists = strings.Contains(sources.String(), "func "+name+"(t *testing.T)")
		} else {
			continue
		}
		named++
		if !exists {
			t.Errorf("GUARANTEES.md names %q, which does not exist", name)
		}
	}
	if named < 20 {
		t.Errorf("GUARANTEES.md names only %d tests", named)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
