package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTable: every mutant still matches the code, and the test named for it exists.
func TestTable(t *testing.T) {
	t.Parallel()
	const root = "../.."
	named := map[string]bool{}
	for _, m := range table {
		if named[m.name] {
			t.Errorf("two mutants have the name %q", m.name)
		}
		named[m.name] = true
		for _, part := range append([]mutant{m}, m.more...) {
			if _, err := part.changedText(root); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
		if _, err := regexp.Compile(m.want); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if name, _, _ := strings.Cut(m.test, "/"); !hasTest(t, filepath.Join(root, m.pkg), name) {
			t.Errorf("%s: there is no %s in %s", m.name, name, m.pkg)
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "\nfunc "+name+"(t *testing.T) {\n") {
			return true
		}
	}
	return false
}

// smallModule is a module of its own, for TestCheckMutant.
var smallModule = map[string]string{
	"go.mod": "module small\n\ngo 1.25\n",
	"p.go":   "package p\n\nfunc Sum(a, b int) int { return a + b }\n\nfunc Unused() int { return 1 }\n",
	"p_test.go": `package p

import "testing"

func TestSum(t *testing.T) {
	if got := Sum(2, 2); got != 4 {
		t.Fatalf("the sum is %d", got)
	}
}

func TestBroken(t *testing.T) { t.Fatal("it cannot run here") }

func TestSkipped(t *testing.T) { t.Skip("not here") }
`}

// TestCheckMutant: a mutant counts as caught only if its test passes without it, and fails with it for the right reason.
func TestCheckMutant(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range smallModule {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	minus := []edit{{"a + b", "a - b"}}
	r := runner{root: root, env: []string{"GOWORK=off", "GOFLAGS="}, passed: map[string]bool{}}
	for _, c := range []struct {
		mutant
		want string // the error; "" if it is caught
	}{
		{mutant{name: "caught", file: "p.go", test: "TestSum", edits: minus, want: "sum is 0"}, ""},
		{mutant{name: "missed", file: "p.go", test: "TestSum", edits: []edit{{"return 1", "return 2"}}},
			"passes with the mutant"},
		{mutant{name: "other words", file: "p.go", test: "TestSum", edits: minus, want: "sum is 7"}, "does not match"},
		{mutant{name: "broken", file: "p.go", test: "TestBroken", edits: minus}, "fails without the mutant"},
		{mutant{name: "skipped", file: "p.go", test: "TestSkipped", edits: minus}, "or it was skipped"},
		{mutant{name: "no test", file: "p.go", test: "TestNothing", edits: minus}, "there is no TestNothing"},
		{mutant{name: "outdated", file: "p.go", test: "TestSum", edits: []edit{{"a * b", ""}}}, "must follow the code"},
		{mutant{name: "does not build", file: "p.go", test: "TestSum", edits: []edit{{"a + b", "c"}}},
			"does not build"},
	} {
		c.pkg = "."
		switch err := r.checkMutant(c.mutant); {
		case err == nil && c.want != "":
			t.Errorf("%s counts as caught", c.name)
		case err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
