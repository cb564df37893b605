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
)

// proofs is all that can prove a promise.
type proofs struct {
	tests   map[string][]testFunc // by name
	suite   map[string]string     // the promise of each case of the conformance suite
	mutants map[string]string     // what catches each mutant
	// simulated are the mutants of the simulation.
	simulated []string
}

// testFunc is one test.
type testFunc struct {
	dir      string // of its package, below the root
	sentence string // the first one of its comment, without its name
}

// collectProofs reads the tests of a checkout.
func collectProofs(root string) (*proofs, error) {
	p := &proofs{tests: map[string][]testFunc{}, suite: map[string]string{}, mutants: map[string]string{}}
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
		t := testFunc{filepath.ToSlash(dir), firstSentence(f.Name.Name, f.Doc.Text())}
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

// collectMutants reads the tables of mutants.
func (p *proofs) collectMutants(root string) error {
	named := regexp.MustCompile(`\{name: "([^"]+)"`)
	simulation, err := os.ReadFile(root + "/internal/sim/mutants_test.go")
	if err != nil {
		return err
	}
	for _, m := range named.FindAllStringSubmatch(string(simulation), -1) {
		p.mutants[m[1]] = "the simulation fails"
		p.simulated = append(p.simulated, m[1])
	}
	table, err := os.ReadFile(root + "/internal/mutants/table.go")
	if err != nil {
		return err
	}
	test := regexp.MustCompile(`\btest:\s+"([^"]+)"`)
	rows := named.FindAllStringSubmatchIndex(string(table), -1)
	for i, at := range rows {
		row := string(table[at[0]:])
		if i+1 < len(rows) {
			row = string(table[at[0]:rows[i+1][0]])
		}
		m := test.FindStringSubmatch(row)
		if m == nil {
			return fmt.Errorf("the mutant %q names no test", table[at[2]:at[3]])
		}
		p.mutants[string(table[at[2]:at[3]])] = "`" + m[1] + "` fails"
	}
	return nil
}

// describe says what a name that stands for a proof means, in the section about one folder or, without a folder, about
// all.
func (p *proofs) describe(name, folder string) (string, error) {
	if c, isCase := strings.CutPrefix(name, "suite: "); isCase {
		if promise, exists := p.suite[c]; exists {
			return promise, nil
		}
		return "", fmt.Errorf("the conformance suite has no case %q", c)
	}
	if m, isMutant := strings.CutPrefix(name, "mutant: "); isMutant {
		if catcher, exists := p.mutants[m]; exists {
			return catcher, nil
		}
		return "", fmt.Errorf("there is no mutant %q", m)
	}
	tests := p.testsIn(name, folder)
	if len(tests) == 0 {
		return "", fmt.Errorf("there is no test %s%s", name, inFolder(folder))
	}
	var texts []string
	for _, t := range tests {
		text := t.dir
		if t.dir == "." {
			text = "root"
		}
		if t.sentence != "" {
			text += ": " + t.sentence
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; "), nil
}

// testsIn are the tests of a name: those of a folder, or else those of the code that all stores share. Without a folder
// they are all.
func (p *proofs) testsIn(name, folder string) (tests []testFunc) {
	if folder == "" {
		return p.tests[name]
	}
	var shared []testFunc
	for _, t := range p.tests[name] {
		parts := strings.Split(t.dir, "/")
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
