package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/mutants/mutantlist"
)

const root = "../.."

// TestEvidence: all tests and cases that the promises name exist, and no mutant is left out.
func TestEvidence(t *testing.T) {
	evidence, err := collectEvidence(root)
	if err != nil {
		t.Fatal(err)
	}
	mutants, err := mutantlist.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		if !strings.Contains(evidence, "    - it catches: "+m.Name+"\n") {
			t.Errorf("the evidence leaves out the mutant %q", m.Name)
		}
	}
}

// TestGuaranteesAreProved: each promise of GUARANTEES.md has a section of the same name in promises.md, with tests.
func TestGuaranteesAreProved(t *testing.T) {
	guarantees := readFile(t, "GUARANTEES.md")
	for _, l := range unproved(guarantees, readFile(t, "docs/promises.md")) {
		t.Errorf("no test in promises.md proves the promise %q of GUARANTEES.md: it needs a section of that name", l)
	}
	if promises := len(label.FindAllString(guarantees, -1)); promises < 20 {
		t.Errorf("GUARANTEES.md has only %d promises with a label", promises)
	}
}

// TestUnproved: a promise without a section, or without a test, is found.
func TestUnproved(t *testing.T) {
	guarantees := "**Order.** First come.\n\n**Loss.** Once.\n\n**Tokens.** They rise.\n\n**Redis.** Fast.\n"
	promises := "## Redis\n\n### Speed\n\n- It is fast.\n  `suite:fast`\n\n" +
		"### Order\n\n- In order.\n  `TestOrder`\n\n### Loss\n\n- Once.\n"
	if got, want := unproved(guarantees, promises), []string{"Loss", "Tokens"}; !slices.Equal(got, want) {
		t.Errorf("unproved are %q, want %q", got, want)
	}
}

// TestWriteEvidence: each name is followed by what the code says of it, and a name that does not exist is an error.
func TestWriteEvidence(t *testing.T) {
	etcd, redis := testID{"store/etcd", "TestKill"}, testID{"store/redis", "TestKill"}
	other := testID{".", "TestOther"}
	p := &proofs{
		tests: map[string][]testFunc{
			"TestKill":  {{etcd, "a killed holder is replaced"}, {redis, "the same"}},
			"TestOther": {{other, ""}},
		},
		suite:     map[string]string{"order": "First come, first served."},
		mutants:   map[testID][]string{etcd: {"a lease forever"}, other: {"none"}},
		simulated: []string{"two at once"},
		described: map[testID]bool{},
	}
	got, err := writeEvidence("- Holders\n  `TestKill` `suite:order`\n## etcd\n- Holders (`TestKill`)\n  `TestKill`\n", p)
	want := "- Holders\n  - `TestKill` in store/etcd: a killed holder is replaced\n    - it catches: a lease forever\n" +
		"  - `TestKill` in store/redis: the same\n  - `suite:order`: First come, first served.\n" +
		"## etcd\n- Holders (`TestKill`)\n" +
		"  - `TestKill` in store/etcd: a killed holder is replaced\n    - it catches: a lease forever\n" +
		"\n## Further rules\n\n  - `TestOther` in the root\n    - it catches: none\n" +
		"\n## Rules of the simulation\n\nThe simulation of whole clients fails with each of these:\n\n- two at once\n"
	if got != want || err != nil {
		t.Errorf("%v\n%s", err, got)
	}
	for _, bad := range []string{"  `TestGone`\n", "  `suite:gone`\n", "| a | `TestGone` |\n", "## ZooKeeper\n  `TestKill`\n"} {
		if _, err := writeEvidence(bad, p); err == nil {
			t.Errorf("accepted: %s", bad)
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(root + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
