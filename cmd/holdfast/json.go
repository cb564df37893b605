package main

import (
	"encoding/json"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
)

// addJSONFlag adds the flag --json of the subcommands that show locks.
func addJSONFlag(c *cobra.Command, asJSON *bool) {
	c.Flags().BoolVar(asJSON, "json", false, "print lines of JSON")
}

// writeLockJSON writes a lock as one line of JSON. Programs read it, so its keys stay.
func writeLockJSON(w io.Writer, lock holdfast.Lock) error {
	return json.NewEncoder(w).Encode(fields{
		"time": time.Now().Format(time.RFC3339Nano), "name": lock.Name, "kind": lock.Kind, "limit": lock.Limit,
		"token":   lock.Token,
		"holders": claimsAsJSON(lock.Holders), "waiters": claimsAsJSON(lock.Waiters),
	})
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
