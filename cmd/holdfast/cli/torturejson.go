package cli

import (
	"math"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/torture"
)

// wholeMillis is a number of milliseconds, or the next larger whole one: an overlap of half a millisecond is not 0.
func wholeMillis(ms float64) int64 { return int64(math.Ceil(ms)) }

// tortureAsJSON is the report of torture for programs.
func tortureAsJSON(r *torture.Report) fields {
	promises := []fields{}
	for _, p := range r.Promises {
		f := fields{"code": p.Code, "message": p.Text, "violations": p.Violations}
		if len(p.Examples) > 0 {
			f["examples"] = violationsAsJSON(p.Examples)
		}
		promises = append(promises, f)
	}
	f := fields{
		"store": r.Store, "tier": r.Tier, "outcome": r.Outcome, "seed": r.Seed, "command": r.Command,
		"took_ms": wholeMillis(1000 * r.Seconds), "workers": r.Workers, "ttl_ms": wholeMillis(r.TTL), "locks": r.Kinds,
		"grants": r.Grants, "hand_overs": r.HandOvers, "renewals": r.Renewals,
		"longest_renewal_ms": wholeMillis(r.LongestRenew),
		"faults":             r.Faults, "failed_claims": r.Failures, "losses": r.Losses,
		"writes": r.Resources.Writes, "stale_writes_refused": r.Resources.Refused,
		"stale_writes_unfenced": r.Resources.Stale, "lost_updates_unfenced": r.Resources.Lost,
		"overlap_ms": wholeMillis(r.OverlapMillis), "promises": promises,
		"waits": distributionAsJSON(r.Waits), "take_overs": distributionAsJSON(r.TakeOvers),
	}
	if len(r.Missing) > 0 {
		f["missing"] = r.Missing
	}
	if r.Ended != "" {
		f["message"] = r.Ended
	}
	return f
}

func distributionAsJSON(d torture.Distribution) fields {
	return fields{"count": d.Count, "median_ms": wholeMillis(d.Median), "p99_ms": wholeMillis(d.P99),
		"worst_ms": wholeMillis(d.Max)}
}

func violationsAsJSON(all []torture.Violation) []fields {
	records := []fields{}
	for _, v := range all {
		holds := []fields{}
		for _, h := range v.Holds {
			f := fields{"worker": h.Worker, "process": h.Process, "token": h.Token, "weight": h.Weight, "outcome": h.How,
				"called_ms": wholeMillis(1000 * h.Called), "begin_ms": wholeMillis(1000 * h.Begin),
				"end_ms": wholeMillis(1000 * h.End)}
			if h.Cause != "" {
				f["cause"] = h.Cause
			}
			holds = append(holds, f)
		}
		records = append(records, fields{"lock": v.Lock, "message": v.Text, "extent_ms": wholeMillis(v.Extent),
			"holds": holds})
	}
	return records
}
