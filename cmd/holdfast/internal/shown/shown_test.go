package shown

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/holdfast-go/holdfast"
)

// TestSchema: the JSON of claims, locks, runs and findings is what docs/json-schema.json says, whether all or nothing
// is known of them; and it has no key that the schema does not have.
func TestSchema(t *testing.T) {
	t.Parallel()
	path, err := filepath.Abs("../../../../docs/json-schema.json")
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	start := time.Date(2026, 1, 2, 3, 4, 5, 600, time.FixedZone("", 3600))
	full := holdfast.ClaimInfo{Owner: "o", Meta: "n", Weight: 2, Ref: "r", Token: 7, Since: start, TTL: time.Minute,
		Remaining: time.Second, Broken: true, Detached: true, Foreign: true, ReleaseRequested: true}
	info := holdfast.Info{}
	run := holdfast.RunInfo{Key: "k", Attempt: 3, State: holdfast.RunSucceeded, ID: "i", Token: 9, Owner: "o",
		StartedAt: start, EndedAt: start.Add(time.Second), Error: "e", Fingerprint: "f", LateReport: holdfast.RunFailed,
		Result: []byte("text")}
	binary := run
	binary.Result = []byte{0xff}
	for _, check := range []struct {
		definition string
		object     any
		want       string // a part of the JSON
	}{
		{"claim", NewClaim(full, PlainRef), `"ref":"r"`},
		{"claim", NewClaim(full, HiddenRef), `"ref":"454349e422f05297191ead13e21d3db5"`},
		{"claim", NewClaim(holdfast.ClaimInfo{}, PlainRef), `"release_requested":false}`},
		{"claim", NewClaim(holdfast.ClaimInfo{Remaining: 1}, PlainRef), `"remaining_ms":0`},
		{"lock_state", NewLock(info, holdfast.Lock{Name: "l"}, PlainRef), `"holders":[],"waiters":[],"waiters_complete":true`},
		{"lock_state", NewLock(info, holdfast.Lock{Name: "l", Kind: holdfast.KindMutex, Limit: 1, Token: 7,
			Holders: []holdfast.ClaimInfo{full}}, PlainRef), `"waiters_complete":false`},
		{"run_state", NewRun(run, 5).WithoutKey(), `"result_bytes":5}`},
		{"run_state", NewRun(holdfast.RunInfo{Attempt: 1, State: holdfast.RunStarted, Token: 1}, 0), `"started":"0001-`},
		{"run_state", NewRunWithResult(run).WithoutKey(), `"result":"text"`},
		{"run_state", NewRunWithResult(binary).WithoutKey(), `"result_base64":"/w=="`},
		{"finding", NewFindings([]holdfast.Finding{{Code: "c", Severity: holdfast.SeverityWarning, What: "w",
			Subject: "s", Why: "y", Fix: "f"}})[0], `"message":"w"`},
		{"finding", NewFindings([]holdfast.Finding{{Code: "c", Severity: holdfast.SeverityUnknown}})[0], `"message":""}`},
	} {
		data, err := json.Marshal(check.object)
		if err != nil {
			t.Fatal(err)
		}
		schema, err := c.Compile(path + "#/$defs/" + check.definition)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(data)))
		if err == nil {
			err = schema.Validate(value)
		}
		if err != nil || !strings.Contains(string(data), check.want) {
			t.Errorf("as a %s, with %s: %v: %s", check.definition, check.want, err, data)
		}
	}
}
