package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
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
The times of runs come from the store's clock. --all shows the runs of all ledgers, and so which ledgers there are.

With --json each run is a record of the type "run". If there are no runs, nothing is printed. To list the keys that
start with "show", "retry" or "forget", write "--" before PREFIX.`

// runFilter says which runs are shown.
type runFilter struct {
	states map[holdfast.RunState]*bool // by flags; none: all states
	since  sinceTime
}

func newLedger(storeURL *string) *cobra.Command {
	ledger := ledgerFlags{store: storeURL}
	var asJSON, all bool
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
			if all && c.Flags().Changed("ledger") {
				return usageError("--all and --ledger exclude each other")
			}
			return withClient(*ledger.store, func(ctx context.Context, client *holdfast.Client) error {
				if from := (ledgerName{store: client.Info().Store}); all {
					return listRuns(c.OutOrStdout(), client.ListRuns(ctx, filter.chosenStates()...), from, prefix, filter, asJSON)
				}
				l, from := ledger.openLedger(client, nil), ledgerName{client.Info().Store, ledger.ledger}
				return listRuns(c.OutOrStdout(), l.List(ctx, prefix, filter.chosenStates()...), from, prefix, filter, asJSON)
			})
		},
		SuggestionsMinimumDistance: 2,
	}
	ledger.addFlags(c)
	addJSONFlag(c, &asJSON)
	filter.addFlags(c)
	c.Flags().BoolVar(&all, "all", false, "show the runs of all ledgers")
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

// listRuns prints the last runs of keys, which are of all ledgers if from names none. Keys that cannot be read do not
// hide the others: see eachReadable.
func listRuns(w io.Writer, found iter.Seq2[holdfast.RunInfo, error], from ledgerName, prefix string, filter runFilter,
	asJSON bool) error {
	var runs []listedRun
	failed := eachReadable(found, func(run holdfast.RunInfo) {
		if filter.since.excludes(run) || !strings.HasPrefix(run.Key, prefix) {
			return
		}
		size := len(run.Result)
		run.Result = nil
		runs = append(runs, listedRun{run, size})
	})
	slices.SortFunc(runs, func(a, b listedRun) int {
		return cmp.Or(cmp.Compare(a.Ledger, b.Ledger), cmp.Compare(a.Key, b.Key))
	})
	if err := printRunList(w, from, runs, asJSON); err != nil {
		return err
	}
	switch {
	case failed != nil:
		return ledgerError(failed)
	case len(runs) == 0 && !asJSON:
		which := map[bool]string{true: "any", false: "this"}[from.ledger == ""]
		return newDisplay(w).tellNothing("no key of " + which + " ledger has such a run")
	}
	return nil
}

// printRunList prints a line per key, or JSON Lines. Nothing is printed for no runs.
func printRunList(w io.Writer, from ledgerName, runs []listedRun, asJSON bool) error {
	if asJSON {
		for _, r := range runs {
			from.ledger = cmp.Or(r.Ledger, from.ledger)
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
	if from.ledger == "" {
		rows[0] = append([]string{"LEDGER"}, rows[0]...)
	}
	for _, r := range runs {
		r.Error = shortenText(r.Error)
		outcome := describeRunError(r.RunInfo)
		if r.State == holdfast.RunSucceeded {
			outcome = formatSize(r.resultSize)
		}
		row := []string{quoteName(r.Key), fmt.Sprint(r.Attempt), string(r.State), formatTime(r.StartedAt),
			formatTook(r.RunInfo), printableText(r.Owner), outcome}
		if from.ledger == "" {
			row = append([]string{quoteName(r.Ledger)}, row...)
		}
		rows = append(rows, row)
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
