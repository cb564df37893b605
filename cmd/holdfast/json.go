package main

import (
	"encoding/json"
	"io"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
)

// addJSONFlag adds the flag --json of the subcommands that show locks or runs.
func addJSONFlag(c *cobra.Command, asJSON *bool) {
	c.Flags().BoolVar(asJSON, "json", false, "print lines of JSON")
}

// writeLockJSON writes a lock as one line of JSON. Programs read it, so its keys stay.
func writeLockJSON(w io.Writer, info holdfast.Info, lock holdfast.Lock) error {
	return json.NewEncoder(w).Encode(fields{
		"time": time.Now().Format(time.RFC3339Nano), "name": lock.Name, "kind": lock.Kind, "limit": lock.Limit,
		"token":   lock.Token,
		"holders": claimsAsJSON(lock.Holders), "waiters": claimsAsJSON(lock.Waiters),
		"waiters_complete": seesAllWaiters(info, lock),
	})
}

// writeRunJSON writes the last run of a key as one line of JSON, without its result.
func writeRunJSON(w io.Writer, ledger string, run holdfast.RunInfo, resultSize int) error {
	f := runAsJSON(run, resultSize)
	f["time"], f["ledger"], f["key"] = time.Now().Format(time.RFC3339Nano), ledger, run.Key
	return json.NewEncoder(w).Encode(f)
}

// writeHistoryJSON writes runs of a key as one line of JSON, with the result. earlier: there are others before them.
func writeHistoryJSON(w io.Writer, ledger, key string, runs []holdfast.RunInfo, earlier bool) error {
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
	f := fields{"time": time.Now().Format(time.RFC3339Nano), "ledger": ledger, "key": key, "runs": records}
	if earlier {
		f["earlier"] = true
	}
	return json.NewEncoder(w).Encode(f)
}

func runAsJSON(run holdfast.RunInfo, resultSize int) fields {
	f := fields{
		"attempt": run.Attempt, "state": run.State, "id": run.ID, "token": run.Token, "owner": run.Owner,
		"note": run.Meta, "started": run.StartedAt.Format(time.RFC3339Nano),
	}
	if !run.EndedAt.IsZero() {
		f["ended"] = run.EndedAt.Format(time.RFC3339Nano)
		f["took_ms"] = run.EndedAt.Sub(run.StartedAt).Milliseconds()
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

func claimsAsJSON(all []holdfast.ClaimInfo) []fields {
	records := []fields{}
	for _, s := range all {
		f := fields{"owner": s.Owner, "note": s.Meta, "weight": s.Weight, "ref": s.Ref}
		if s.Token != 0 {
			f["token"] = s.Token
		}
		if !s.Since.IsZero() {
			f["since"] = s.Since.Format(time.RFC3339Nano)
		}
		if s.Remaining > 0 {
			f["left_ms"] = s.Remaining.Milliseconds()
		}
		for name, is := range map[string]bool{
			"broken": s.Broken, "detached": s.Detached, "foreign": s.Foreign, "asked": s.ReleaseRequested,
		} {
			if is {
				f[name] = true
			}
		}
		records = append(records, f)
	}
	return records
}
