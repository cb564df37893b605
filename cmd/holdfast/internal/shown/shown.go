// Package shown is how the command, the server and its page show what the library returns: the JSON of locks, claims,
// runs and findings, which docs/json-schema.json describes, and the words for people that all of them use.
package shown

import (
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast"
)

// Claim is a holder or a waiter of a lock. What is not known is absent.
type Claim struct {
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
	TTL              *int64 `json:"ttl_ms,omitempty"`
	Remaining        *int64 `json:"remaining_ms,omitempty"`
}

// Lock is the state of a lock. The kind and the limit are known only while there are claims.
type Lock struct {
	Lock            string        `json:"lock"`
	Kind            holdfast.Kind `json:"kind,omitempty"`
	Limit           int64         `json:"limit,omitempty"`
	Token           int64         `json:"token,omitempty"`
	Holders         []Claim       `json:"holders"`
	Waiters         []Claim       `json:"waiters"`
	WaitersComplete bool          `json:"waiters_complete"`
}

// Run is a run of a ledger.
type Run struct {
	Key         string            `json:"key,omitempty"` // absent where the key is told before
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

// Finding is a finding about the settings of a store.
type Finding struct {
	Code     string            `json:"code"`
	Severity holdfast.Severity `json:"severity"`
	Message  string            `json:"message"`
	Subject  string            `json:"subject,omitempty"`
	Why      string            `json:"why,omitempty"`
	Fix      string            `json:"fix,omitempty"`
}

// FormatTime is a time as all JSON has it: RFC 3339 in UTC.
func FormatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// Millis is a duration as all JSON has it, in whole milliseconds. It is rounded down: what is valid for so long is
// valid for at least so long. None is negative, whatever two clocks say.
func Millis(d time.Duration) int64 { return max(d, 0).Milliseconds() }

// knownMillis is a duration that is not known if it is 0.
func knownMillis(d time.Duration) *int64 {
	if d <= 0 {
		return nil
	}
	ms := Millis(d)
	return &ms
}

// NewClaim makes the JSON of a claim.
func NewClaim(c holdfast.ClaimInfo, refs Refs) Claim {
	claim := Claim{Owner: c.Owner, Note: c.Meta, Weight: c.Weight, Ref: refs(c.Ref), Broken: c.Broken,
		Detached: c.Detached, Foreign: c.Foreign, ReleaseRequested: c.ReleaseRequested, Token: c.Token,
		TTL: knownMillis(c.TTL), Remaining: knownMillis(c.Remaining)}
	if !c.Since.IsZero() {
		claim.Since = FormatTime(c.Since)
	}
	return claim
}

// NewClaims makes the JSON of the holders or the waiters of a lock.
func NewClaims(all []holdfast.ClaimInfo, refs Refs) []Claim {
	claims := make([]Claim, len(all))
	for i, c := range all {
		claims[i] = NewClaim(c, refs)
	}
	return claims
}

// NewLock makes the JSON of a lock.
func NewLock(info holdfast.Info, lock holdfast.Lock, refs Refs) Lock {
	return Lock{Lock: lock.Name, Kind: lock.Kind, Limit: lock.Limit, Token: lock.Token,
		Holders: NewClaims(lock.Holders, refs), Waiters: NewClaims(lock.Waiters, refs),
		WaitersComplete: AllWaiters(info, lock)}
}

// NewRun makes the JSON of a run, with the size of its result alone.
func NewRun(run holdfast.RunInfo, resultSize int) Run {
	r := Run{Key: run.Key, Attempt: run.Attempt, State: run.State, ID: run.ID, Token: run.Token, Owner: run.Owner,
		Note: run.Meta, Started: FormatTime(run.StartedAt), Error: run.Error, Fingerprint: run.Fingerprint,
		LateReport: run.LateReport}
	if !run.EndedAt.IsZero() {
		took := Millis(run.EndedAt.Sub(run.StartedAt))
		r.Ended, r.Took = FormatTime(run.EndedAt), &took
	}
	if run.State == holdfast.RunSucceeded {
		r.ResultBytes = &resultSize
	}
	return r
}

// NewRunWithResult makes the JSON of a run, with its result.
func NewRunWithResult(run holdfast.RunInfo) Run {
	r := NewRun(run, len(run.Result))
	switch text := string(run.Result); {
	case run.State != holdfast.RunSucceeded:
	case utf8.ValidString(text):
		r.Result = &text
	default:
		r.ResultData = run.Result
	}
	return r
}

// WithoutKey is the run where its key is told before.
func (r Run) WithoutKey() Run {
	r.Key = ""
	return r
}

// NewFindings makes the JSON of findings.
func NewFindings(found []holdfast.Finding) []Finding {
	findings := make([]Finding, len(found))
	for i, f := range found {
		findings[i] = Finding{Code: f.Code, Severity: f.Severity, Message: f.What, Subject: f.Subject, Why: f.Why, Fix: f.Fix}
	}
	return findings
}
