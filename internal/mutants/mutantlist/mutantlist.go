// Package mutantlist reads the files mutants.txt, which list the safety rules that tests must miss when they are
// switched off. Such a file stands in the folder of the code that it changes, and a paragraph of it is a mutant:
//
//	mutant: what goes wrong without the rule
//	test: TestName             (or "TestName/part in FOLDER", if the test is in another folder)
//	output: REGEXP             (optional: what the output of the failing test matches)
//	file: code.go
//	- the text to replace
//	+ the text that replaces it
//
// A file can have several replacements, and a mutant can change several files. Lines that begin with # are comments.
package mutantlist

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// Mutant is one rule switched off.
type Mutant struct {
	Name   string // what goes wrong without the rule, in a few plain words; unique
	Folder string // of the test, below the root: store/postgres
	Test   string // the test that must fail; TestOuter/inner for one part of it
	Output string // a regular expression that the test's output must match; "" for any failure
	Files  []File
}

// File is what a mutant changes in one file.
type File struct {
	Name  string // below the root of the repository
	Edits []Edit
}

// Edit replaces a text that occurs in the file exactly once.
type Edit struct{ Old, New string }

// Read returns all mutants of a checkout.
func Read(root string) (all []Mutant, err error) {
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == "dist" || d.Name() == ".git"):
			return fs.SkipDir
		case d.Name() != "mutants.txt":
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		found, err := parseMutants(filepath.ToSlash(folder), string(text))
		if err != nil {
			return fmt.Errorf("%s:%w", file, err)
		}
		all = append(all, found...)
		return nil
	})
	return all, err
}

// parseMutants reads the mutants of a folder.
func parseMutants(folder, text string) (all []Mutant, err error) {
	p := parser{folder: folder}
	number := 0
	for line := range strings.Lines(text) {
		number++
		if err := p.addLine(strings.TrimSuffix(line, "\n")); err != nil {
			return nil, fmt.Errorf("%d: %w", number, err)
		}
	}
	if err := p.endMutant(); err != nil {
		return nil, fmt.Errorf("%d: %w", number, err)
	}
	return p.all, nil
}

// parser reads a file of mutants line by line.
type parser struct {
	folder   string
	all      []Mutant
	current  Mutant
	old, new []string // the replacement that is being read
}

func (p *parser) addLine(line string) error {
	key, value, _ := strings.Cut(line, " ")
	if !strings.HasPrefix(key, "-") && !strings.HasPrefix(key, "+") {
		p.endReplacement()
	}
	switch key {
	case "":
		return p.endMutant()
	case "#":
	case "mutant:":
		p.current.Name = value
	case "test:":
		test, folder, elsewhere := strings.Cut(value, " in ")
		if !elsewhere {
			folder = p.folder
		}
		p.current.Test, p.current.Folder = test, folder
	case "output:":
		if _, err := regexp.Compile(value); err != nil {
			return err
		}
		p.current.Output = value
	case "file:":
		p.current.Files = append(p.current.Files, File{Name: path.Join(p.folder, value)})
	case "-":
		if p.new != nil {
			p.endReplacement()
		}
		p.old = append(p.old, value)
	case "+":
		p.new = append(p.new, value)
	default:
		return fmt.Errorf("a line begins with mutant:, test:, output:, file:, -, + or #, not with %q", key)
	}
	return nil
}

func (p *parser) endReplacement() {
	if last := len(p.current.Files) - 1; last >= 0 && p.old != nil {
		f := &p.current.Files[last]
		f.Edits = append(f.Edits, Edit{strings.Join(p.old, "\n"), strings.Join(p.new, "\n")})
	}
	p.old, p.new = nil, nil
}

func (p *parser) endMutant() error {
	p.endReplacement()
	m := p.current
	p.current = Mutant{}
	switch {
	case m.Name == "" && m.Test == "" && m.Files == nil:
		return nil
	case m.Name == "" || m.Test == "" || m.Files == nil:
		return fmt.Errorf("the mutant %q needs a name, a test and a file", m.Name)
	}
	for _, f := range m.Files {
		if f.Edits == nil {
			return fmt.Errorf("the mutant %q changes nothing in %s", m.Name, f.Name)
		}
	}
	p.all = append(p.all, m)
	return nil
}
