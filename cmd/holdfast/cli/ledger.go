package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

const ledgerHelp = `ledger shows what has become of the keys that were run once: for each key that starts with PREFIX its last run, in the
order of the keys. Such keys are those of a run ledger; a key is run again until a run has succeeded.

The state of a run is one of
  started    it is in progress
  succeeded  the key is not run again
  failed     the key can be run again
  abandoned  its worker died or stopped renewing it; the key can be run again
"holdfast stores" says how soon the run of a worker that died is abandoned.

--failed, --abandoned, --running and --succeeded show the runs in any of the states that are given. --since also leaves
out runs that started and ended before a time, such as 2006-01-02T15:04:05Z, or before a duration ago, such as 24h.
The times of runs are those of the store's clock.

With --json each run is a record of the type "run". If there are no runs, nothing is printed. To list the keys that
start with "show", "retry" or "forget", write "--" before PREFIX.`

// runFilter says which runs are shown.
type runFilter struct {
	states map[holdfast.RunState]*bool // by flags; none: all states
	since  sinceTime
}

func newLedger(storeURL *string) *cobra.Command {
	ledger := ledgerFlags{store: storeURL}
	var asJSON bool
	var filter runFilter
	c := &cobra.Command{
		Use:   "ledger [PREFIX]",
		Short: "List the keys of a run ledger, and what has become of each",
		Long:  ledgerHelp,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 2 { // the first is probably a subcommand
				if like := c.SuggestionsFor(args[0]); len(like) > 0 {
					return usageError("unknown subcommand %q of ledger; did you mean %s?", args[0], strings.Join(like, " or "))
				}
			}
			return prefixArg(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			prefix, err := prefixOf(args)
			if err != nil {
				return err
			}
			return ledger.withLedger(func(ctx context.Context, l *holdfast.Ledger, from ledgerName) error {
				return listRuns(ctx, c.OutOrStdout(), l, from, prefix, filter, asJSON)
			})
		},
		SuggestionsMinimumDistance: 2,
	}
	ledger.addFlags(c)
	addJSONFlag(c, &asJSON)
	filter.addFlags(c)
	c.AddCommand(newLedgerShow(storeURL), newLedgerRetry(storeURL), newLedgerForget(storeURL))
	return c
}

// withLedger is withClient for the subcommands that need only a ledger.
func (f *ledgerFlags) withLedger(call func(ctx context.Context, l *holdfast.Ledger, from ledgerName) error) error {
	return withClient(*f.store, func(ctx context.Context, client *holdfast.Client) error {
		return call(ctx, f.openLedger(client, nil), ledgerName{client.Info().Store, f.ledger})
	})
}

// addFlags adds a flag per state, and --since.
func (f *runFilter) addFlags(c *cobra.Command) {
	f.states = map[holdfast.RunState]*bool{}
	for _, s := range []struct {
		state       holdfast.RunState
		flag, usage string
	}{
		{holdfast.RunFailed, "failed", "show the runs that have failed"},
		{holdfast.RunAbandoned, "abandoned", "show the runs whose workers died or stopped renewing them"},
		{holdfast.RunStarted, "running", "show the runs that are in progress"},
		{holdfast.RunSucceeded, "succeeded", "show the runs that have succeeded"},
	} {
		f.states[s.state] = c.Flags().Bool(s.flag, false, s.usage)
	}
	c.Flags().Var(&f.since, "since",
		"show the runs that started or ended since `TIME`, or 24h: within the last day")
}

// chosenStates are the states that are shown; none means all.
func (f *runFilter) chosenStates() (chosen []holdfast.RunState) {
	for state, on := range f.states {
		if *on {
			chosen = append(chosen, state)
		}
	}
	return chosen
}

// sinceTime is the value of --since: a time, given as such or as a duration before now. The zero value is no limit.
type sinceTime struct {
	time time.Time
	text string
}

func (s *sinceTime) Type() string   { return "time" }
func (s *sinceTime) String() string { return s.text }

// Set parses a duration before now, or a time.
func (s *sinceTime) Set(text string) error {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		*s = sinceTime{time: time.Now().Add(-d), text: text}
		return nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return errors.New("give a duration with its unit, such as 24h, or a time such as 2006-01-02T15:04:05Z")
	}
	*s = sinceTime{time: t, text: text}
	return nil
}

// excludes reports whether a run started and ended before the time. A run in progress has not ended.
func (s *sinceTime) excludes(run holdfast.RunInfo) bool {
	return run.StartedAt.Before(s.time) && run.EndedAt.Before(s.time)
}

// listedRun is a run of the list. Its result is left out, because many large ones would fill the memory.
type listedRun struct {
	holdfast.RunInfo
	resultSize int
}

// listRuns prints the last run of each key. Keys that cannot be read do not hide the others: see eachReadable.
func listRuns(ctx context.Context, w io.Writer, l *holdfast.Ledger, from ledgerName, prefix string, filter runFilter,
	asJSON bool) error {
	var runs []listedRun
	failed := eachReadable(l.List(ctx, prefix, filter.chosenStates()...), func(run holdfast.RunInfo) {
		if filter.since.excludes(run) {
			return
		}
		size := len(run.Result)
		run.Result = nil
		runs = append(runs, listedRun{run, size})
	})
	slices.SortFunc(runs, func(a, b listedRun) int { return cmp.Compare(a.Key, b.Key) })
	if err := printRunList(w, from, runs, asJSON); err != nil {
		return err
	}
	switch {
	case failed != nil:
		return ledgerError(failed)
	case len(runs) == 0 && !asJSON:
		return newDisplay(w).tellNothing("no key of this ledger has such a run")
	}
	return nil
}

// printRunList prints a line per key, or JSON Lines. Nothing is printed for no runs.
func printRunList(w io.Writer, from ledgerName, runs []listedRun, asJSON bool) error {
	if asJSON {
		for _, r := range runs {
			if err := writeRunJSON(w, from, r.RunInfo, r.resultSize); err != nil {
				return err
			}
		}
		return nil
	}
	if len(runs) == 0 {
		return nil
	}
	rows := [][]string{{"KEY", "ATTEMPT", "STATE", "STARTED", "TOOK", "OWNER", "OUTCOME"}}
	for _, r := range runs {
		r.Error = shortenText(r.Error)
		outcome := describeRunError(r.RunInfo)
		if r.State == holdfast.RunSucceeded {
			outcome = formatSize(r.resultSize)
		}
		rows = append(rows, []string{quoteName(r.Key), fmt.Sprint(r.Attempt), string(r.State), formatTime(r.StartedAt),
			formatTook(r.RunInfo), printableText(r.Owner), outcome})
	}
	return writeTable(w, rows)
}

// describeRunError is why a run failed or was abandoned, and what its worker reported too late.
func describeRunError(r holdfast.RunInfo) string {
	text := "-"
	if r.Error != "" {
		text = printableText(r.Error)
	}
	if late := shown.DescribeLateReport(r); late != "" {
		text += "; " + late
	}
	return text
}

// formatTook is how long a run took, or has taken until now.
func formatTook(r holdfast.RunInfo) string { return shown.FormatTook(r, time.Now(), "") }
