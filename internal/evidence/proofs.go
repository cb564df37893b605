package main

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/mutants/mutantlist"
)

// proofs is all that can prove a promise.
type proofs struct {
	tests     map[string][]testFunc // by name
	suite     map[string]string     // the promise of each case of the conformance suite
	mutants   map[testID][]string   // by the test that catches them
	simulated []string              // the mutants of the simulation
	described map[testID]bool
}

// testID identifies a test.
type testID struct {
	folder string // of its package, below the root
	name   string
}

// testFunc is one test.
type testFunc struct {
	id       testID
	sentence string // the first one of its comment, without its name
}

// collectProofs reads the tests of a checkout.
func collectProofs(root string) (*proofs, error) {
	p := &proofs{tests: map[string][]testFunc{}, suite: map[string]string{}, mutants: map[testID][]string{},
		described: map[testID]bool{}}
	for _, c := range drivertest.Cases() {
		p.suite[c.Name] = c.Promise
	}
	if err := p.collectMutants(root); err != nil {
		return nil, err
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == ".git"):
			return fs.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			return p.collectTests(root, path)
		}
		return nil
	})
	return p, err
}

// collectTests adds the tests of one file.
func (p *proofs) collectTests(root, path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir, err := filepath.Rel(root, filepath.Dir(path))
	if err != nil {
		return err
	}
	for _, decl := range file.Decls {
		f, isFunc := decl.(*ast.FuncDecl)
		if !isFunc || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") {
			continue
		}
		t := testFunc{testID{filepath.ToSlash(dir), f.Name.Name}, firstSentence(f.Name.Name, f.Doc.Text())}
		if !slices.Contains(p.tests[f.Name.Name], t) { // it may be declared once per operating system
			p.tests[f.Name.Name] = append(p.tests[f.Name.Name], t)
		}
	}
	return nil
}

// firstSentence is the first sentence of a test's comment, without the test's name.
func firstSentence(name, comment string) string {
	sentence := new(doc.Package).Synopsis(comment)
	sentence = strings.TrimPrefix(sentence, name)
	return strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(sentence, ":")), ".")
}

// collectMutants reads the lists of mutants.
func (p *proofs) collectMutants(root string) error {
	simulation, err := os.ReadFile(root + "/internal/sim/mutants_test.go")
	if err != nil {
		return err
	}
	for _, m := range regexp.MustCompile(`\{name: "([^"]+)"`).FindAllStringSubmatch(string(simulation), -1) {
		p.simulated = append(p.simulated, m[1])
	}
	all, err := mutantlist.Read(root)
	if err != nil {
		return err
	}
	for _, m := range all {
		name, _, _ := strings.Cut(m.Test, "/")
		catcher := testID{m.Folder, name}
		p.mutants[catcher] = append(p.mutants[catcher], m.Name)
	}
	return nil
}

// describe writes what a name that stands for a proof means, in the section about one folder or, without a folder,
// about all.
func (p *proofs) describe(w *strings.Builder, name, folder string) error {
	if c, isCase := strings.CutPrefix(name, "suite:"); isCase {
		promise, exists := p.suite[c]
		if !exists {
			return fmt.Errorf("the conformance suite has no case %q", c)
		}
		fmt.Fprintf(w, "  - `%s`: %s\n", name, promise)
		return nil
	}
	tests := p.testsIn(name, folder)
	if len(tests) == 0 {
		return fmt.Errorf("there is no test %s%s", name, inFolder(folder))
	}
	for _, t := range tests {
		p.describeTest(w, t)
	}
	return nil
}

// describeTest writes what a test checks, and the mutants that it catches.
func (p *proofs) describeTest(w *strings.Builder, t testFunc) {
	folder := t.id.folder
	if folder == "." {
		folder = "the root"
	}
	fmt.Fprintf(w, "  - `%s` in %s", t.id.name, folder)
	if t.sentence != "" {
		fmt.Fprintf(w, ": %s", t.sentence)
	}
	w.WriteString("\n")
	for _, m := range p.mutants[t.id] {
		fmt.Fprintf(w, "    - it catches: %s\n", m)
	}
	p.described[t.id] = true
}

// testsIn returns the tests with a name that are in a folder, or else in the code that all stores share. Without a
// folder it returns all.
func (p *proofs) testsIn(name, folder string) (tests []testFunc) {
	if folder == "" {
		return p.tests[name]
	}
	var shared []testFunc
	for _, t := range p.tests[name] {
		parts := strings.Split(t.id.folder, "/")
		switch {
		case slices.Contains(parts, folder):
			tests = append(tests, t)
		case parts[0] != "store":
			shared = append(shared, t)
		}
	}
	if len(tests) > 0 {
		return tests
	}
	return shared
}

func inFolder(folder string) string {
	if folder == "" {
		return ""
	}
	return ", neither in a folder " + folder + " nor in code that all stores share"
}
