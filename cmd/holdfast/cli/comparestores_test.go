package cli

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
)

// TestCompareAgreesWithGuarantees: holdfast stores --compare says of each store what the table of GUARANTEES.md says.
// It opens no store, and its table fits into 100 columns.
func TestCompareAgreesWithGuarantees(t *testing.T) {
	t.Parallel()
	guarantees, err := os.ReadFile("../../../GUARANTEES.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(strings.ReplaceAll(string(guarantees), "`", "")) {
		cells := strings.Split(strings.Trim(line, "|\n "), " | ")
		if len(cells) == 7 {
			rows[cells[0]] = cells[1:]
		}
	}
	w := newWorkspace(t)
	shown := map[string]bool{}
	asJSON, asText := w.runProgram("stores", "--compare", "--json"), w.runProgram("stores", "--compare")
	asJSON.check(t, 0)
	asText.check(t, 0)
	for line := range strings.Lines(asJSON.out) {
		var record struct {
			Kind  string        `json:"kind_of_store"`
			Tier  holdfast.Tier `json:"tier"`
			Texts storePromise  `json:"texts"`
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		p := record.Texts
		p.Store = record.Kind
		shown[p.Store] = true
		spaced := strings.NewReplacer("-", " ")
		if !strings.HasPrefix(spaced.Replace(p.Tier), spaced.Replace(string(record.Tier))) {
			t.Errorf("%s: the tier %s is described as %s", p.Store, record.Tier, p.Tier)
		}
		got := []string{p.Tier, p.Survives, p.DeadHolder, p.TokensCanFall, p.SmallestTTL, p.HoldersWaiters}
		if want := rows[p.Store]; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", p.Store, got, want)
		}
		if !strings.Contains(p.DeadHolder, p.KilledAfter) {
			t.Errorf("%s: a killed holder is replaced after %s, but %s", p.Store, p.KilledAfter, p.DeadHolder)
		}
	}
	for store := range rows {
		if !shown[store] && store != "store" && store != "memory" && store != "DynamoDB, layout=ledger" {
			t.Errorf("%s is missing", store)
		}
	}
	for lines := bufio.NewScanner(strings.NewReader(asText.out)); lines.Scan(); {
		if len(lines.Text()) > 100 {
			t.Errorf("%d columns: %s", len(lines.Text()), lines.Text())
		}
	}
	for store := range shown {
		if !strings.Contains(asText.out, "\n"+store+"  ") {
			t.Errorf("the table has no %s", store)
		}
	}
}
