// Doccheck reports exported declarations that have no doc comment, and lines that are too wide: more than one line in a
// hundred wider than 120 columns. It reads the folders given as arguments.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

const (
	wide    = 120 // columns; a tab counts as four
	perCent = 100
)

func main() {
	var faults []string
	for _, dir := range os.Args[1:] {
		faults = append(faults, undocumented(dir)...)
	}
	faults = append(faults, wideLines(os.Args[1:])...)
	for _, fault := range faults {
		fmt.Println(fault)
	}
	if len(faults) > 0 {
		os.Exit(1)
	}
}

// undocumented lists the exported declarations of a package that lack a doc comment. A comment on a group of constants,
// variables or fields counts for all of its members. Commands have no exported interface.
func undocumented(dir string) (faults []string) {
	fset := token.NewFileSet()
	for _, name := range goFiles(dir) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return append(faults, err.Error())
		}
		if file.Name.Name == "main" {
			continue
		}
		complain := func(id *ast.Ident) {
			faults = append(faults, fmt.Sprintf("%s: %s has no doc comment", fset.Position(id.Pos()), id.Name))
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Doc == nil && d.Name.IsExported() && hasExportedReceiver(d) && !isWellKnown(d) {
					complain(d.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						if d.Doc == nil && s.Doc == nil && s.Comment == nil && s.Name.IsExported() {
							complain(s.Name)
						}
					case *ast.ValueSpec:
						for _, id := range s.Names {
							if d.Doc == nil && s.Doc == nil && s.Comment == nil && id.IsExported() {
								complain(id)
							}
						}
					}
				}
			}
		}
	}
	return faults
}

// isWellKnown reports whether a method is one that the standard library defines, and that does what everybody expects.
func isWellKnown(d *ast.FuncDecl) bool {
	switch d.Name.Name {
	case "Error", "String", "Unwrap", "Is", "Len", "Less", "Swap", "Push", "Pop", "Read", "Write", "Close", "MarshalJSON",
		"UnmarshalJSON", "MarshalText", "UnmarshalText", "RoundTrip", "Format":
		return d.Recv != nil
	}
	return false
}

func hasExportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

func wideLines(dirs []string) (faults []string) {
	lines, tooWide := 0, 0
	var wideOnes []string
	for _, dir := range dirs {
		for _, name := range goFiles(dir) {
			data, err := os.ReadFile(name)
			if err != nil {
				return append(faults, err.Error())
			}
			for i, line := range bytes.Split(data, []byte("\n")) {
				lines++
				if columns := utf8.RuneCount(line) + 3*bytes.Count(line, []byte("\t")); columns > wide {
					tooWide++
					wideOnes = append(wideOnes, fmt.Sprintf("%s:%d: %d columns", name, i+1, columns))
				}
			}
		}
	}
	if tooWide*perCent > lines {
		faults = append(wideOnes, fmt.Sprintf("%d of %d lines are wider than %d columns; at most 1 in 100 may be",
			tooWide, lines, wide))
	}
	return faults
}

func goFiles(dir string) []string {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		panic(err) // the pattern is wrong
	}
	return names
}
