package operator

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestActions: docs/json-schema.json names the actions for the audit log, and no others; each of them can be carried
// out.
func TestActions(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../../docs/json-schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Defs struct {
			Audit struct {
				Properties struct{ Action struct{ Enum []Action } }
			}
		} `json:"$defs"`
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	described := schema.Defs.Audit.Properties.Action.Enum
	if !slices.Equal(slices.Sorted(slices.Values(Actions)), slices.Sorted(slices.Values(described))) {
		t.Errorf("the actions are %q, and docs/json-schema.json has %q", Actions, described)
	}
	client, err := holdfast.New(memory.New(nil).Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	claim := &Claim{ClaimInfo: holdfast.ClaimInfo{Ref: "r"}, Lock: holdfast.Lock{Name: "a"}}
	for _, action := range append([]Action{"other"}, Actions...) {
		onClaim := claim.Act(t.Context(), client, action, "")
		onRun := ActOnRun(t.Context(), client.Ledger("jobs", nil), action, "k")
		if known := !errors.Is(onClaim, errNoAction) || !errors.Is(onRun, errNoAction); known != (action != "other") {
			t.Errorf("%s: %v, %v", action, onClaim, onRun)
		}
	}
}

// TestFindClaim: a claim is found by its ref as it was shown, among holders and waiters; without a ref only the only
// holder.
func TestFindClaim(t *testing.T) {
	t.Parallel()
	claims := func(refs ...string) (all []holdfast.ClaimInfo) {
		for _, ref := range refs {
			all = append(all, holdfast.ClaimInfo{Ref: ref})
		}
		return all
	}
	for _, c := range []struct {
		holders, waiters []holdfast.ClaimInfo
		ref, found       string
		waits            bool
		err              error
	}{
		{claims("a"), claims("b"), "", "a", false, nil},
		{claims("a"), claims("b"), "B", "b", true, nil},
		{claims("a", "b"), nil, "B", "b", false, nil},
		{claims("a"), claims("b"), "b", "", false, ErrNoClaim},
		{nil, claims("b"), "", "", false, ErrNoHolder},
		{claims("a", "b"), nil, "", "", false, ErrAmbiguous},
	} {
		found, err := FindClaim(holdfast.Lock{Holders: c.holders, Waiters: c.waiters}, c.ref, strings.ToUpper)
		if !errors.Is(err, c.err) || err == nil && (found.Ref != c.found || found.Waits != c.waits) {
			t.Errorf("%+v: %+v, %v", c, found, err)
		}
	}
}

// TestCheckRun: a run in progress is not changed, and one that has succeeded is not retried; to forget it must be
// confirmed.
func TestCheckRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		action Action
		state  holdfast.RunState
		want   error
	}{
		{Retry, holdfast.RunStarted, holdfast.ErrInProgress}, {Forget, holdfast.RunStarted, holdfast.ErrInProgress},
		{Retry, holdfast.RunSucceeded, holdfast.ErrSucceeded}, {Forget, holdfast.RunSucceeded, nil},
		{Retry, holdfast.RunFailed, nil}, {Forget, holdfast.RunAbandoned, nil}, {Break, holdfast.RunFailed, errNoAction},
	} {
		last := holdfast.RunInfo{Attempt: 3, State: c.state}
		if err := CheckRun(c.action, last); !errors.Is(err, c.want) {
			t.Errorf("%s of a run that has %s: %v", c.action, c.state, err)
		}
		if got := RepeatsSuccess(c.action, last); got != (c.action == Forget && c.state == holdfast.RunSucceeded) {
			t.Errorf("%s of a run that has %s repeats a success: %v", c.action, c.state, got)
		}
	}
}
