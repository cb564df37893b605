package torture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
)

const contSignal = system.SIGCONT

// Outcome is what a run has shown.
type Outcome string

// The outcomes.
const (
	Sound      Outcome = "sound"    // no promise was broken
	Broken     Outcome = "broken"   // a promise was broken
	Unproven   Outcome = "unproven" // there were too few faults or grants
	minTurns           = 100        // hand-overs and faults that a run needs to prove anything
	minFaults          = 30         //
	minPerKind         = 3          // faults of each kind that was asked for
)

// Report is the result of a run.
type Report struct {
	Outcome Outcome  `json:"outcome"`
	Missing []string `json:"missing,omitempty"` // why nothing is proven
	Ended   string   `json:"ended_early,omitempty"`
	Store   string   `json:"store"`
	Tier    string   `json:"tier"`
	// NoTokens says that there are no fencing tokens, so that nothing can be fenced.
	NoTokens bool   `json:"no_tokens,omitempty"`
	Seed     uint64 `json:"seed"`
	Command  string `json:"command,omitempty"` // that repeats the run
	Version  string `json:"version,omitempty"`

	Seconds   float64        `json:"seconds"`
	Workers   int            `json:"workers"`
	TTL       float64        `json:"ttl_ms"`
	Kinds     []Kind         `json:"locks"`
	Grants    int            `json:"grants"`
	HandOvers int            `json:"hand_overs"`
	Faults    map[Fault]int  `json:"faults"`
	Failures  map[string]int `json:"failed_claims"`
	Losses    map[string]int `json:"losses"`
	Resources ResourceCounts `json:"resources"`
	Renewals  int            `json:"renewals"`
	Windows   int            `json:"linearizability_windows"`

	// OverlapMillis is the longest time for which two holders believed at once.
	OverlapMillis float64         `json:"overlap_ms"`
	Promises      []PromiseReport `json:"promises"`

	Waits         Distribution `json:"waits"`
	TakeOvers     Distribution `json:"take_overs"`
	LongestRenew  float64      `json:"longest_renewal_ms"`
	TimelineHolds []HoldView   `json:"-"`
	TimelineFault []FaultView  `json:"-"`
}

// PromiseReport is what became of one promise.
type PromiseReport struct {
	Promise
	Violations int         `json:"violations"`
	Worst      float64     `json:"worst_ms,omitempty"`
	Examples   []Violation `json:"examples,omitempty"`
}

// accuseStarved records that a worker has not had its turn.
func (j *judge) accuseStarved(worker int, lock Lock, limit time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.accuse("starved", 0, &hold{name: lock.Name}, nil,
		fmt.Sprintf("worker %d did not get the lock within %v after the last fault", worker, limit))
}

// accuseLeftover records that a claim is left in the store.
func (j *judge) accuseLeftover(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.accuse("leftovers", 0, &hold{name: name}, nil,
		"all workers have ended, and the lock still has a claim")
}

// progress is one line about the run until now.
func (j *judge) progress() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	broken := 0
	for _, v := range j.verdicts {
		broken += v.Count
	}
	lost := 0
	for _, n := range j.losses {
		lost += n
	}
	return fmt.Sprintf("%v: %d grants, %d faults, %d holds lost, %d violations",
		time.Duration(now()-j.start).Round(time.Second), j.grants, j.faults.total(), lost, broken)
}

// report is called when all is judged.
func (j *judge) report(cfg Config, subject Subject, took time.Duration) *Report {
	j.mu.Lock()
	defer j.mu.Unlock()
	if n := j.counts.Refused; n > 0 && j.verdicts["tokens"].Count > 0 {
		j.verdicts["fence"].Count = n
		j.verdicts["fence"].Examples = j.verdicts["tokens"].Examples
	}
	if !j.tokens { // no resource knows the numbers that the judge gives
		j.counts.Refused = 0
	}
	r := &Report{Store: subject.Store, Tier: subject.Tier, NoTokens: subject.NoTokens, Seed: cfg.Seed, Seconds: took.Seconds(), Workers: cfg.Workers,
		TTL: millis(cfg.TTL), Kinds: cfg.Kinds, Grants: j.grants, HandOvers: j.handOvers, Faults: map[Fault]int{},
		Failures: j.failures, Losses: j.losses, Resources: j.counts, Renewals: j.renewals, Windows: j.windows,
		OverlapMillis: millis(j.verdicts["overlap"].worst), Waits: j.waits.distribution(),
		TakeOvers: j.takeOvers.distribution(), LongestRenew: millis(j.renewalMax)}
	maps.Copy(r.Faults, j.faults.counts)
	broken := 0
	for _, p := range promises {
		if !r.concerns(p) {
			continue
		}
		v := j.verdicts[p.Code]
		broken += v.Count
		r.Promises = append(r.Promises, PromiseReport{Promise: p, Violations: v.Count, Worst: millis(v.worst), Examples: v.Examples})
	}
	r.Missing = r.missing(cfg)
	switch {
	case broken > 0:
		r.Outcome = Broken
	case len(r.Missing) > 0:
		r.Outcome = Unproven
	default:
		r.Outcome = Sound
	}
	r.TimelineHolds = append(slices.Clone(j.timeline.holds[j.timeline.next:]), j.timeline.holds[:j.timeline.next]...)
	r.TimelineFault = j.faults.views
	return r
}

// concerns reports whether a promise can be kept or broken by what was run.
func (r *Report) concerns(p Promise) bool {
	switch p.Code {
	case "tokens", "fence":
		return !r.NoTokens
	case "limit":
		return slices.Contains(r.Kinds, Semaphore)
	case "twice":
		return slices.Contains(r.Kinds, Ledger)
	case "order":
		return slices.Contains(r.Kinds, Fair)
	}
	return true
}

// missing says why a run without violations proves nothing.
func (r *Report) missing(cfg Config) (why []string) {
	if r.HandOvers < minTurns {
		why = append(why, fmt.Sprintf("%d hand-overs of exclusive locks between processes; at least %d are needed", r.HandOvers, minTurns))
	}
	total := 0
	for _, n := range r.Faults {
		total += n
	}
	if total < minFaults {
		why = append(why, fmt.Sprintf("%d faults; at least %d are needed", total, minFaults))
	}
	for _, f := range cfg.Faults {
		if n := r.Faults[f]; n < minPerKind {
			why = append(why, fmt.Sprintf("%d faults of the kind %s; at least %d are needed", n, f, minPerKind))
		}
	}
	if n := r.Faults[ServerFault]; cfg.ServerFault != "" && n < minPerKind {
		why = append(why, fmt.Sprintf("%d faults of the server; at least %d are needed", n, minPerKind))
	}
	return why
}

// Text returns the report for people.
func (r *Report) Text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("store        %s (%s)", r.Store, r.Tier)
	line("run          %.0f s, %d workers, TTL %v, seed %d", r.Seconds, r.Workers, time.Duration(r.TTL)*time.Millisecond, r.Seed)
	line("grants       %d, of them %d hand-overs of exclusive locks between processes", r.Grants, r.HandOvers)
	line("faults       %s", countsText(r.Faults))
	line("holds lost   %s", countsText(r.Losses))
	line("waits        median %.1f ms, 99 %% %.1f ms, longest %.1f ms", r.Waits.Median, r.Waits.P99, r.Waits.Max)
	line("take-overs   %d of a dead or cut-off holder: median %.0f ms, longest %.0f ms", r.TakeOvers.Count, r.TakeOvers.Median, r.TakeOvers.Max)
	line("renewals     %d, the longest %.1f ms", r.Renewals, r.LongestRenew)
	fence := fmt.Sprintf("%d stale ones refused by the fence", r.Resources.Refused)
	if r.NoTokens {
		fence = "there are no tokens to fence with"
	}
	line("resource     %d writes; %s, %d stale ones accepted where there is none", r.Resources.Writes, fence, r.Resources.Stale)
	line("overlap      %v ms for which two holders believed that the lock was theirs", r.OverlapMillis)
	line("")
	for _, p := range r.Promises {
		state := "kept"
		if p.Violations > 0 {
			state = fmt.Sprintf("BROKEN %d times", p.Violations)
		}
		line("%-16s %s", state, p.Text)
		for i, v := range p.Examples {
			if i == 3 {
				line("                 ... and %d more", p.Violations-i)
				break
			}
			line("                 %s: %s", v.Lock, v.Text)
			for _, h := range v.Holds {
				line("                   worker %d.%d, token %d: asked at %.3f s, believed from %.3f to %.3f s, %s", h.Worker, h.Process, h.Token, h.Called, h.Begin, h.End, strings.TrimSpace(h.How+" "+h.Cause))
			}
		}
	}
	line("")
	if r.Ended != "" {
		line("ended early: %s", r.Ended)
	}
	for _, m := range r.Missing {
		line("not enough: %s", m)
	}
	switch r.Outcome {
	case Sound:
		line("sound: every promise was kept")
	case Unproven:
		line("nothing proven: no promise was broken, but the run was too short or too quiet")
	case Broken:
		line("broken: see above; promises of a store are in GUARANTEES.md")
	}
	if r.Command != "" {
		line("again: %s", r.Command)
	}
	return b.String()
}

// countsText lists counts by name.
func countsText[K ~string](counts map[K]int) string {
	if len(counts) == 0 {
		return "none"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, counts[k]))
	}
	return strings.Join(parts, ", ")
}
