package cli

import (
	"encoding/json"
	"io"
	"maps"
	"os"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/waiters"
)

// The JSON of this command is a contract: docs/json-schema.json describes each record, docs/json.md explains it, and
// the tests check all output against the schema. A record is one object on one line. Times are in UTC, durations are
// whole milliseconds under a key that ends in _ms, and what a program may decide by is a code; texts for people are in
// message.

// fields are the keys and values of a record.
type fields map[string]any

// recordType says what a record is about. It is the value of its key type.
type recordType string

const (
	recordLock           recordType = "lock"            // list, show, watch
	recordHold           recordType = "hold"            // hold
	recordHandle         recordType = "handle"          // acquire
	recordBreak          recordType = "break"           // break
	recordReleaseRequest recordType = "release_request" // request-release
	recordRun            recordType = "run"             // runs
	recordHistory        recordType = "history"         // runs show
	recordRetry          recordType = "retry"           // runs retry
	recordForget         recordType = "forget"          // runs forget
	recordToken          recordType = "token"           // token show
	recordTokenFloor     recordType = "token_floor"     // token floor
	recordPlan           recordType = "plan"            // explain
	recordStore          recordType = "store"           // stores
	recordStoreKind      recordType = "store_kind"      // stores --compare
	recordDiagnosis      recordType = "diagnosis"       // doctor
	recordTorture        recordType = "torture"         // torture
	recordServe          recordType = "serve"           // serve
	recordAudit          recordType = "audit"           // --audit-log of serve
	recordVersion        recordType = "version"         // version
	recordEvent          recordType = "event"           // --record of run, hold and once
)

// addJSONFlag adds the flag --json, which means the same on each subcommand that has it.
func addJSONFlag(c *cobra.Command, asJSON *bool) {
	c.Flags().BoolVar(asJSON, "json", false, "print JSON, one object per line")
}

// jsonTime is a time as all JSON of this command has it: RFC 3339 in UTC.
func jsonTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// jsonMillis is a duration as all JSON of this command has it. None is negative, whatever two clocks say.
func jsonMillis(d time.Duration) int64 { return max(d, 0).Milliseconds() }

// originFields say which program has written a record: on which host, for which user, and its version.
var originFields = sync.OnceValue(func() fields {
	host, _ := os.Hostname() // empty if it is not known
	return fields{"host": host, "user": userName(), "version": buildVersion()}
})

// newRecord is a record with the fields that all have.
func newRecord(kind recordType, f fields) fields {
	record := fields{"type": kind, "time": jsonTime(time.Now())}
	maps.Copy(record, originFields())
	if f["store"] != nil {
		maps.Copy(record, storeSourceFields())
	}
	maps.Copy(record, f)
	return record
}

// storeSourceFields say where the URL of the store is from.
func storeSourceFields() fields {
	choice := usedStore.Load()
	switch {
	case choice == nil:
		return nil
	case choice.source == "":
		return fields{"store_source": "default"}
	case choice.source == "--store":
		return fields{"store_source": "flag"}
	case choice.source == "HOLDFAST_STORE":
		return fields{"store_source": "environment"}
	}
	return fields{"store_source": "file", "store_source_line": choice.source}
}

// writeRecord writes a record as one line.
func writeRecord(w io.Writer, kind recordType, f fields) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return out.Encode(newRecord(kind, f))
}

// writeLockJSON writes the state of a lock.
func writeLockJSON(w io.Writer, info holdfast.Info, lock holdfast.Lock) error {
	f := lockAsJSON(info, lock)
	f["store"] = info.Store
	return writeRecord(w, recordLock, f)
}

// lockAsJSON is the state of a lock. The kind and the limit are known only while there are claims.
func lockAsJSON(info holdfast.Info, lock holdfast.Lock) fields {
	f := fields{
		"lock": lock.Name, "holders": claimsAsJSON(lock.Holders), "waiters": claimsAsJSON(lock.Waiters),
		"waiters_complete": waiters.AllSeen(info, lock),
	}
	if lock.Kind != "" {
		f["kind"], f["limit"] = lock.Kind, lock.Limit
	}
	if lock.Token > 0 {
		f["token"] = lock.Token
	}
	return f
}

// claimsAsJSON are the holders or the waiters of a lock.
func claimsAsJSON(all []holdfast.ClaimInfo) []fields {
	records := []fields{}
	for _, s := range all {
		f := fields{
			"owner": s.Owner, "note": s.Meta, "weight": s.Weight, "ref": s.Ref,
			"broken": s.Broken, "detached": s.Detached, "foreign": s.Foreign, "release_requested": s.ReleaseRequested,
		}
		if s.Token != 0 {
			f["token"] = s.Token
		}
		if !s.Since.IsZero() {
			f["since"] = jsonTime(s.Since)
		}
		if s.TTL > 0 {
			f["ttl_ms"] = jsonMillis(s.TTL)
		}
		if s.Remaining > 0 {
			f["remaining_ms"] = jsonMillis(s.Remaining)
		}
		records = append(records, f)
	}
	return records
}

// ledgerName is the place of a ledger: its store and its name.
type ledgerName struct{ store, ledger string }

// writeRunJSON writes the last run of a key, without its result.
func writeRunJSON(w io.Writer, from ledgerName, run holdfast.RunInfo, resultSize int) error {
	f := runAsJSON(run, resultSize)
	f["store"], f["ledger"], f["key"] = from.store, from.ledger, run.Key
	return writeRecord(w, recordRun, f)
}

// writeHistoryJSON writes runs of a key, with the result. earlier: there are others before them.
func writeHistoryJSON(w io.Writer, from ledgerName, key string, runs []holdfast.RunInfo, earlier bool) error {
	records := []fields{}
	for _, run := range runs {
		f := runAsJSON(run, len(run.Result))
		switch {
		case run.State != holdfast.RunSucceeded:
		case utf8.Valid(run.Result):
			f["result"] = string(run.Result)
		default:
			f["result_base64"] = run.Result // which encoding/json writes in base64
		}
		records = append(records, f)
	}
	return writeRecord(w, recordHistory, fields{
		"store": from.store, "ledger": from.ledger, "key": key, "runs": records, "earlier": earlier,
	})
}

// runAsJSON is one run of a ledger.
func runAsJSON(run holdfast.RunInfo, resultSize int) fields {
	f := fields{
		"attempt": run.Attempt, "state": run.State, "id": run.ID, "token": run.Token, "owner": run.Owner,
		"note": run.Meta, "started": jsonTime(run.StartedAt),
	}
	if !run.EndedAt.IsZero() {
		f["ended"] = jsonTime(run.EndedAt)
		f["took_ms"] = jsonMillis(run.EndedAt.Sub(run.StartedAt))
	}
	if run.State == holdfast.RunSucceeded {
		f["result_bytes"] = resultSize
	}
	for name, text := range map[string]string{
		"error": run.Error, "fingerprint": run.Fingerprint, "late_report": string(run.LateReport),
	} {
		if text != "" {
			f[name] = text
		}
	}
	return f
}

// findingsAsJSON are findings about the settings of a store.
func findingsAsJSON(found []holdfast.Finding) []fields {
	records := []fields{}
	for _, x := range found {
		f := fields{"code": x.Code, "severity": x.Severity, "message": x.What}
		for name, text := range map[string]string{"subject": x.Subject, "why": x.Why, "fix": x.Fix} {
			if text != "" {
				f[name] = text
			}
		}
		records = append(records, f)
	}
	return records
}
