package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// TestEvidence: EVIDENCE.md says of each test, case and mutant that it names what the comments in the code say. All of
// them exist, and no mutant of the simulation is left out.
func TestEvidence(t *testing.T) {
	document := readFile(t, "EVIDENCE.md")
	p, err := collectProofs(root)
	if err != nil {
		t.Fatal(err)
	}
	completed, err := completeDocument(document, p)
	if err != nil {
		t.Error(err)
	}
	if completed != document {
		t.Error("EVIDENCE.md is out of date: go run ./internal/evidence")
	}
	if named := strings.Count(document, "\n  - `"); named < 500 {
		t.Errorf("EVIDENCE.md names only %d proofs", named)
	}
}

// TestGuaranteesAreProved: each promise of GUARANTEES.md has a section of the same name in EVIDENCE.md, with tests.
func TestGuaranteesAreProved(t *testing.T) {
	guarantees := readFile(t, "GUARANTEES.md")
	for _, l := range unproved(guarantees, readFile(t, "EVIDENCE.md")) {
		t.Errorf("no test in EVIDENCE.md proves the promise %q of GUARANTEES.md: it needs a section of that name", l)
	}
	if promises := len(label.FindAllString(guarantees, -1)); promises < 20 {
		t.Errorf("GUARANTEES.md has only %d promises with a label", promises)
	}
}

// TestUnproved: a promise without a section, or with mutants alone, is found.
func TestUnproved(t *testing.T) {
	guarantees := "**Order.** First come.\n\n**Loss.** Once.\n\n**Tokens.** They rise.\n\n**Redis.** Fast.\n"
	evidence := "## Redis\n\n### Speed\n\n- It is fast.\n  - `suite: fast`\n\n" +
		"### Order\n\n- In order.\n  - `TestOrder`\n\n### Loss\n\n- Once.\n  - `mutant: twice`\n"
	if got, want := unproved(guarantees, evidence), []string{"Loss", "Tokens"}; !slices.Equal(got, want) {
		t.Errorf("unproved are %q, want %q", got, want)
	}
}

// TestCompleteDocument: what was written behind a name is replaced by what the code says, and a name that does not
// exist is an error.
func TestCompleteDocument(t *testing.T) {
	p := &proofs{
		tests: map[string][]testFunc{
			"TestKill": {{"store/etcd", "a killed holder is replaced"}, {"store/redis", "the same"}},
		},
		suite:   map[string]string{"order": "First come, first served."},
		mutants: map[string]string{"m": "`TestKill` fails"},
	}
	old := "- Holders\n  - `TestKill`: old\n  - `suite: order`\n  - `mutant: m`\n## etcd\n- Holders\n  - `TestKill`\n"
	want := "- Holders\n  - `TestKill` in store/etcd: a killed holder is replaced; store/redis: the same\n" +
		"  - `suite: order`: First come, first served.\n  - `mutant: m`: `TestKill` fails\n" +
		"## etcd\n- Holders\n  - `TestKill` in store/etcd: a killed holder is replaced\n"
	for range 2 { // the second time changes nothing
		got, err := completeDocument(old, p)
		if got != want || err != nil {
			t.Errorf("%v\n%s", err, got)
		}
		old = got
	}
	for _, bad := range []string{"  - `TestGone`\n", "  - `suite: gone`\n", "  - `mutant: gone`\n",
		"| a | `TestGone` |\n", "## ZooKeeper\n  - `TestKill`\n"} {
		if _, err := completeDocument(bad, p); err == nil {
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
