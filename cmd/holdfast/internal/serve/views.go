package serve

import (
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shownref"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/waiters"
)

// The views are what the library returns, as docs/openapi.yaml has it: with the keys of docs/json.md.

// claimView is a claim.
type claimView struct {
	Owner            string `json:"owner"`
	Note             string `json:"note"`
	Weight           int64  `json:"weight"`
	Ref              string `json:"ref"`
	Broken           bool   `json:"broken"`
	Detached         bool   `json:"detached"`
	Foreign          bool   `json:"foreign"`
	ReleaseRequested bool   `json:"release_requested"`
	Token            int64  `json:"token,omitempty"`
	Since            string `json:"since,omitempty"`
	TTL              int64  `json:"ttl_ms,omitempty"`
	Remaining        int64  `json:"remaining_ms,omitempty"`
}

// lockView is the state of a lock.
type lockView struct {
	Lock            string        `json:"lock"`
	Kind            holdfast.Kind `json:"kind,omitempty"`
	Limit           int64         `json:"limit,omitempty"`
	Token           int64         `json:"token,omitempty"`
	Holders         []claimView   `json:"holders"`
	Waiters         []claimView   `json:"waiters"`
	WaitersComplete bool          `json:"waiters_complete"`
}

// runView is a run of a ledger.
type runView struct {
	Key         string            `json:"key"`
	Attempt     int64             `json:"attempt"`
	State       holdfast.RunState `json:"state"`
	ID          string            `json:"id"`
	Token       int64             `json:"token"`
	Owner       string            `json:"owner"`
	Note        string            `json:"note"`
	Started     string            `json:"started"`
	Ended       string            `json:"ended,omitempty"`
	Took        *int64            `json:"took_ms,omitempty"`
	Error       string            `json:"error,omitempty"`
	Fingerprint string            `json:"fingerprint,omitempty"`
	LateReport  holdfast.RunState `json:"late_report,omitempty"`
	ResultBytes *int              `json:"result_bytes,omitempty"`
	Result      *string           `json:"result,omitempty"`
	ResultData  []byte            `json:"result_base64,omitempty"` // which encoding/json writes in base64
}

// unreadable is a lock or a key that could not be read.
type unreadable struct {
	Lock    string `json:"lock,omitempty"`
	Key     string `json:"key,omitempty"`
	Code    code   `json:"code"`
	Message string `json:"message"`
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// millis is a duration in whole milliseconds, rounded down: what is valid for so long is valid for at least so long.
func millis(d time.Duration) int64 { return max(d, 0).Milliseconds() }

func viewClaim(c holdfast.ClaimInfo) claimView {
	v := claimView{Owner: c.Owner, Note: c.Meta, Weight: c.Weight, Ref: shownref.Of(c.Ref), Broken: c.Broken,
		Detached: c.Detached, Foreign: c.Foreign, ReleaseRequested: c.ReleaseRequested, Token: c.Token, TTL: millis(c.TTL),
		Remaining: millis(c.Remaining)}
	if !c.Since.IsZero() {
		v.Since = formatTime(c.Since)
	}
	return v
}

func viewClaims(all []holdfast.ClaimInfo) []claimView {
	views := make([]claimView, len(all))
	for i, c := range all {
		views[i] = viewClaim(c)
	}
	return views
}

func (s *Server) viewLock(lock holdfast.Lock) lockView {
	return lockView{Lock: lock.Name, Kind: lock.Kind, Limit: lock.Limit, Token: lock.Token,
		Holders: viewClaims(lock.Holders), Waiters: viewClaims(lock.Waiters),
		WaitersComplete: waiters.AllSeen(s.client.Info(), lock)}
}

func viewRun(run holdfast.RunInfo, withResult bool) runView {
	v := runView{Key: run.Key, Attempt: run.Attempt, State: run.State, ID: run.ID, Token: run.Token, Owner: run.Owner,
		Note: run.Meta, Started: formatTime(run.StartedAt), Error: run.Error, Fingerprint: run.Fingerprint,
		LateReport: run.LateReport}
	if !run.EndedAt.IsZero() {
		took := millis(run.EndedAt.Sub(run.StartedAt))
		v.Ended, v.Took = formatTime(run.EndedAt), &took
	}
	if run.State == holdfast.RunSucceeded {
		size := len(run.Result)
		v.ResultBytes = &size
		switch text := string(run.Result); {
		case !withResult:
		case utf8.ValidString(text):
			v.Result = &text
		default:
			v.ResultData = run.Result
		}
	}
	return v
}
