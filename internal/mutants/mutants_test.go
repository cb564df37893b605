package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/mutants/mutantlist"
)

// TestMutants: every mutant still matches the code, and the test named for it exists.
func TestMutants(t *testing.T) {
	t.Parallel()
	const root = "../.."
	named := map[string]bool{}
	mutants, err := mutantlist.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		if named[m.Name] {
			t.Errorf("two mutants have the name %q", m.Name)
		}
		named[m.Name] = true
		for _, f := range m.Files {
			if _, err := changeText(root, f); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
		}
		if name, _, _ := strings.Cut(m.Test, "/"); !hasTest(t, filepath.Join(root, m.Folder), name) {
			t.Errorf("%s: there is no %s in %s", m.Name, name, m.Folder)
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

// TestCheckMutant: a mutant counts as caught only if its test passes without it, and fails with it for the right
// reason.
func TestCheckMutant(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range smallModule {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	change := func(old, new string) []mutantlist.File {
		return []mutantlist.File{{Name: "p.go", Edits: []mutantlist.Edit{{Old: old, New: new}}}}
	}
	minus := change("a + b", "a - b")
	r := runner{root: root, env: []string{"GOWORK=off", "GOFLAGS="}, passed: map[string]bool{}}
	for _, c := range []struct {
		mutantlist.Mutant
		want string // the error; "" if it is caught
	}{
		{mutantlist.Mutant{Name: "caught", Test: "TestSum", Files: minus, Output: "sum is 0"}, ""},
		{mutantlist.Mutant{Name: "missed", Test: "TestSum", Files: change("return 1", "return 2")},
			"passes with the mutant"},
		{mutantlist.Mutant{Name: "other words", Test: "TestSum", Files: minus, Output: "sum is 7"}, "does not match"},
		{mutantlist.Mutant{Name: "broken", Test: "TestBroken", Files: minus}, "fails without the mutant"},
		{mutantlist.Mutant{Name: "skipped", Test: "TestSkipped", Files: minus}, "or it was skipped"},
		{mutantlist.Mutant{Name: "no test", Test: "TestNothing", Files: minus}, "there is no TestNothing"},
		{mutantlist.Mutant{Name: "outdated", Test: "TestSum", Files: change("a * b", "")}, "must follow the code"},
		{mutantlist.Mutant{Name: "does not build", Test: "TestSum", Files: change("a + b", "c")},
			"does not build"},
	} {
		c.Folder = "."
		switch err := r.checkMutant(c.Mutant); {
		case err == nil && c.want != "":
			t.Errorf("%s counts as caught", c.Name)
		case err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v", c.Name, err)
		}
	}
}
