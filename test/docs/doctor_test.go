package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// findingRow is a finding as the code declares it, in the table of its package.
type findingRow struct {
	dir, name, severity string
	uses                int // of the row, in the checks of its package
}

// findingTables are the tables of findings of all packages that have some.
type findingTables struct {
	rows  map[string]*findingRow // by code
	texts map[string]string      // what the text literals of a package say; its fixes are among them
	tests map[string]string      // the files with the tests of a package
}

// TestDoctorTable: docs/doctor.md lists all findings of the code with their severities, and no others, and the settings
// that it names are those that the code tells users to change. Each finding is declared once, in a table; a check of
// the same package reports it, and a test of the package expects it.
func TestDoctorTable(t *testing.T) {
	found := readFindings(t)
	row := regexp.MustCompile("^\\| `([a-z0-9-]+)` \\| (\\w+) \\| .* \\| (.*) \\|$")
	setting := regexp.MustCompile("`([^`]+)`")
	listed := map[string]bool{}
	for line := range strings.Lines(readDocument(t, root+"/docs/doctor.md")) {
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		code, f := m[1], found.rows[m[1]]
		switch {
		case listed[code]:
			t.Errorf("docs/doctor.md lists %s twice", code)
		case f == nil:
			t.Errorf("docs/doctor.md lists %s, which the code does not have", code)
		case f.severity != m[2]:
			t.Errorf("docs/doctor.md says that %s is %s, and the code %s", code, m[2], f.severity)
		}
		listed[code] = true
		if f == nil {
			continue
		}
		for _, s := range setting.FindAllStringSubmatch(m[3], -1) {
			if !strings.Contains(found.texts[f.dir], s[1]) {
				t.Errorf("docs/doctor.md says to change %s for %s, and no text of %s says so", s[1], code, f.dir)
			}
		}
	}
	for code, f := range found.rows {
		if !listed[code] {
			t.Errorf("docs/doctor.md does not list %s", code)
		}
		if f.uses == 0 {
			t.Errorf("%s declares %s, and reports it nowhere", f.dir, f.name)
		}
		if !strings.Contains(found.tests[f.dir], `"`+code+`"`) {
			t.Errorf("no test of %s expects %s", f.dir, code)
		}
	}
	if len(listed) < 100 {
		t.Errorf("docs/doctor.md lists only %d findings", len(listed))
	}
}

// readFindings reads the tables of findings of the code, and who uses them.
func readFindings(t *testing.T) findingTables {
	t.Helper()
	all := findingTables{map[string]*findingRow{}, map[string]string{}, map[string]string{}}
	named, uses := map[string]*findingRow{}, map[string]int{} // by folder and name
	for _, pattern := range []string{"../../store/*/*.go", "../../cmd/holdfast/cli/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(len(files), err)
		}
		for _, file := range files {
			dir := filepath.Dir(file)
			if strings.HasSuffix(file, "_test.go") {
				all.tests[dir] += readDocument(t, file)
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ValueSpec:
					all.declare(t, dir, n, named)
				case *ast.CompositeLit:
					if isFinding(n) && len(n.Elts) > 0 {
						uses["literals "+dir]++
					}
				case *ast.Ident:
					uses[dir+" "+n.Name]++
				case *ast.BasicLit:
					if text, err := strconv.Unquote(n.Value); err == nil {
						all.texts[dir] += text
					}
				}
				return true
			})
		}
	}
	rows := map[string]int{}
	for at, f := range named {
		f.uses = uses[at] - 1 // one is the declaration
		rows[f.dir]++
	}
	for dir, n := range rows {
		if literals := uses["literals "+dir]; literals != n {
			t.Errorf("%s makes findings in %d places, and declares %d: declare each in the table", dir, literals, n)
		}
	}
	return all
}

// declare adds a finding that is declared as a variable.
func (all findingTables) declare(t *testing.T, dir string, v *ast.ValueSpec, named map[string]*findingRow) {
	for i, value := range v.Values {
		literal, ok := value.(*ast.CompositeLit)
		if !ok || !isFinding(literal) {
			continue
		}
		row, code := &findingRow{dir: dir, name: v.Names[i].Name}, ""
		for _, e := range literal.Elts {
			field := e.(*ast.KeyValueExpr)
			switch value := field.Value.(type) {
			case *ast.BasicLit:
				if field.Key.(*ast.Ident).Name == "Code" {
					code, _ = strconv.Unquote(value.Value)
				}
			case *ast.SelectorExpr:
				row.severity = strings.ToLower(strings.TrimPrefix(value.Sel.Name, "Severity"))
			}
		}
		if other := all.rows[code]; other != nil || code == "" {
			t.Errorf("%s: the code %q of %s is empty, or another finding's too", dir, code, row.name)
		}
		all.rows[code], named[dir+" "+row.name] = row, row
	}
}

// isFinding reports whether a literal is one of driver.Finding.
func isFinding(l *ast.CompositeLit) bool {
	s, ok := l.Type.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Finding"
}
