// Apicheck compares the exported API of the packages that others may import with the files in the folder api: one file
// per package, one line per name, field and method, without comments and names of parameters. So a change of the API is
// a change of a file, which its author and all others see. It runs in the top directory, and has the packages as
// arguments.
//
//	apicheck PACKAGE...     prints what differs, and what to do
//	apicheck -w PACKAGE...  writes the files
package main

import (
	"flag"
	"fmt"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

const (
	ours   = "github.com/holdfast-go/holdfast"
	folder = "api"
)

func main() {
	write := flag.Bool("w", false, "write the files")
	flag.Parse()
	if err := run(*write, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "apicheck:", err)
		os.Exit(1)
	}
}

func run(write bool, patterns []string) error {
	now, err := readPackages(patterns)
	if err != nil {
		return err
	}
	if write {
		return writeFiles(now)
	}
	before, err := readFiles()
	if err != nil {
		return err
	}
	if !printDifferences(before, now) {
		return nil
	}
	return fmt.Errorf(`the API is not as the files in %s say. A line with - was promised to programs that exist.
Before version 1 it may go, if CHANGELOG.md says what to write instead; see docs/releasing.md for what stays deprecated.
If the change is meant: scripts/api -w, and commit the files with it`, folder)
}

// readPackages returns the lines of each file.
func readPackages(patterns []string) (map[string][]string, error) {
	config := &packages.Config{Mode: packages.NeedName | packages.NeedTypes | packages.NeedImports}
	found, err := packages.Load(config, patterns...)
	if err != nil {
		return nil, err
	}
	files := map[string][]string{}
	for _, pkg := range found {
		if len(pkg.Errors) > 0 {
			return nil, pkg.Errors[0]
		}
		d := describer{pkg: pkg.Types}
		d.describePackage()
		slices.Sort(d.lines)
		if len(d.lines) > 0 {
			files[fileName(pkg.PkgPath)] = d.lines
		}
	}
	return files, nil
}

// fileName returns store-redis.txt for the package in store/redis.
func fileName(pkgPath string) string {
	name := strings.TrimPrefix(strings.TrimPrefix(pkgPath, ours), "/")
	if name == "" {
		name = "holdfast"
	}
	return strings.ReplaceAll(name, "/", "-") + ".txt"
}

func readFiles() (map[string][]string, error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil {
		return nil, err
	}
	files := map[string][]string{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		files[filepath.Base(name)] = strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	}
	return files, nil
}

func writeFiles(files map[string][]string) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	for name, lines := range files {
		text := strings.Join(lines, "\n") + "\n"
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// printDifferences prints the lines that have gone and those that have come, and reports whether there are any.
func printDifferences(before, now map[string][]string) (differ bool) {
	names := map[string]bool{}
	for _, files := range []map[string][]string{before, now} {
		for name := range files {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		for _, line := range before[name] {
			if !slices.Contains(now[name], line) {
				differ = true
				fmt.Printf("%s/%s: - %s\n", folder, name, line)
			}
		}
		for _, line := range now[name] {
			if !slices.Contains(before[name], line) {
				differ = true
				fmt.Printf("%s/%s: + %s\n", folder, name, line)
			}
		}
	}
	return differ
}

// describer makes the lines of one package.
type describer struct {
	pkg   *types.Package
	lines []string
}

func (d *describer) add(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *describer) describePackage() {
	scope := d.pkg.Scope()
	for _, name := range scope.Names() {
		switch o := scope.Lookup(name).(type) {
		case *types.Const:
			if o.Exported() {
				d.add("const %s %s = %s", name, d.typeText(o.Type()), o.Val().ExactString())
			}
		case *types.Var:
			if o.Exported() {
				d.add("var %s %s", name, d.typeText(o.Type()))
			}
		case *types.Func:
			if o.Exported() {
				d.add("func %s%s", name, d.signature(o.Signature()))
			}
		case *types.TypeName:
			if o.Exported() {
				d.describeType(o)
			}
		}
	}
}

func (d *describer) describeType(o *types.TypeName) {
	if alias, ok := o.Type().(*types.Alias); ok {
		d.add("type %s = %s", o.Name(), d.typeText(alias.Rhs()))
		return
	}
	named := o.Type().(*types.Named)
	head := "type " + o.Name() + d.typeParams(named.TypeParams())
	switch t := named.Underlying().(type) {
	case *types.Struct:
		d.add("%s struct", head)
		d.describeFields(head, t)
	case *types.Interface:
		d.add("%s interface", head)
		d.describeInterface(head, t)
		return // its methods are listed
	default:
		d.add("%s %s", head, d.typeText(t))
	}
	d.describeMethods(named)
}

// describeFields also lists the fields that come from an embedded struct which is not exported.
func (d *describer) describeFields(head string, t *types.Struct) {
	for i := range t.NumFields() {
		f := t.Field(i)
		inner, isStruct := f.Type().Underlying().(*types.Struct)
		switch {
		case f.Embedded() && !f.Exported() && isStruct:
			d.describeFields(head, inner)
		case f.Embedded() && f.Exported():
			d.add("%s, embedded %s", head, d.typeText(f.Type()))
		case f.Exported() && t.Tag(i) != "":
			d.add("%s, %s %s `%s`", head, f.Name(), d.typeText(f.Type()), t.Tag(i))
		case f.Exported():
			d.add("%s, %s %s", head, f.Name(), d.typeText(f.Type()))
		}
	}
}

func (d *describer) describeInterface(head string, t *types.Interface) {
	hidden := false
	for m := range t.Methods() {
		if m.Exported() {
			d.add("%s, %s%s", head, m.Name(), d.signature(m.Signature()))
		}
		hidden = hidden || !m.Exported()
	}
	if hidden {
		d.add("%s, methods that are not exported", head)
	}
}

// describeMethods lists the methods of a type, and those that it has from an embedded type which is not exported. Those
// of an exported one are listed there.
func (d *describer) describeMethods(named *types.Named) {
	values := types.NewMethodSet(named)
	for selection := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		m := selection.Obj()
		if !m.Exported() || len(selection.Index()) > 1 && isExportedField(named, selection.Index()[0]) {
			continue
		}
		star := "*"
		if values.Lookup(d.pkg, m.Name()) != nil {
			star = ""
		}
		d.add("method (%s%s) %s%s", star, named.Obj().Name(), m.Name(), d.signature(m.Type().(*types.Signature)))
	}
}

func isExportedField(named *types.Named, index int) bool {
	t, ok := named.Underlying().(*types.Struct)
	return ok && t.Field(index).Exported()
}

// signature leaves out the names of parameters: nobody's program depends on them.
func (d *describer) signature(s *types.Signature) string {
	text := d.typeParams(s.TypeParams()) + d.tuple(s.Params(), s.Variadic())
	switch results := s.Results(); results.Len() {
	case 0:
		return text
	case 1:
		return text + " " + d.typeText(results.At(0).Type())
	default:
		return text + " " + d.tuple(results, false)
	}
}

func (d *describer) tuple(t *types.Tuple, variadic bool) string {
	var list []string
	for i := range t.Len() {
		text := d.typeText(t.At(i).Type())
		if variadic && i == t.Len()-1 {
			text = "..." + strings.TrimPrefix(text, "[]")
		}
		list = append(list, text)
	}
	return "(" + strings.Join(list, ", ") + ")"
}

func (d *describer) typeParams(list *types.TypeParamList) string {
	if list.Len() == 0 {
		return ""
	}
	var texts []string
	for p := range list.TypeParams() {
		texts = append(texts, p.Obj().Name()+" "+d.typeText(p.Constraint()))
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// typeText goes into types by itself where a function may be in them, whose parameters have names.
func (d *describer) typeText(t types.Type) string {
	switch t := t.(type) {
	case *types.Pointer:
		return "*" + d.typeText(t.Elem())
	case *types.Slice:
		return "[]" + d.typeText(t.Elem())
	case *types.Map:
		return "map[" + d.typeText(t.Key()) + "]" + d.typeText(t.Elem())
	case *types.Signature:
		return "func" + d.signature(t)
	}
	return types.TypeString(t, func(p *types.Package) string {
		if p == d.pkg {
			return ""
		}
		return p.Name()
	})
}
