package mutantlist

import (
	"reflect"
	"strings"
	"testing"
)

// TestParseMutants: a file of mutants with a fault is refused, with the line.
func TestParseMutants(t *testing.T) {
	const whole = "# About.\n\nmutant: a sum\ntest: TestSum in p\noutput: is 0\nfile: p.go\n- a\n-\n+ b\n- c\nfile: q.go\n- d\n+\n"
	all, err := parseMutants("x", whole)
	want := []Mutant{{Name: "a sum", Test: "TestSum", Folder: "p", Output: "is 0", Files: []File{
		{"x/p.go", []Edit{{"a\n", "b"}, {"c", ""}}}, {"x/q.go", []Edit{{"d", ""}}}}}}
	if err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("got %+v, %v", all, err)
	}
	for text, want := range map[string]string{
		"mutant: a\ntest: TestA\n\n":                       "3: the mutant \"a\" needs",
		"test: TestA\nfile: p.go\n- a\n":                   "3: the mutant \"\" needs",
		"mutant: a\ntest: TestA\nfile: p.go\n":             "3: the mutant \"a\" changes nothing in x/p.go",
		"mutant: a\noutput: (\n":                           "2: error parsing regexp",
		"mutant: a\nTest: TestA\nfile: p.go\n- a\n+ b\n":   "2: a line begins with",
		"mutant: a\ntest: TestA\nfile: p.go\n- a\n--- b\n": "5: a line begins with",
	} {
		if _, err := parseMutants("x", text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
