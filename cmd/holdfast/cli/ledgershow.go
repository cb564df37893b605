package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
)

const ledgerShowHelp = `show prints the last runs of KEY in the order in which they began: 100, or with --last N as many as that, if so many are
kept. A result that is text of one short line is shown; of any other the size is.

With --result it prints only the result of the run that has succeeded, exactly as it was stored; if none has succeeded,
it prints a message and exits 1.

With --json it prints one record of the type "history". A key that was never run has no runs.`

// shownRuns is how many runs of a key are shown if --last is not given.
const shownRuns = 100

func newLedgerShow(storeURL *string) *cobra.Command {
	ledger := ledgerFlags{store: storeURL}
	var asJSON, onlyResult bool
	var last int
	c := &cobra.Command{
		Use:   "show KEY",
		Short: "Show all runs of a key, or the result",
		Long:  ledgerShowHelp,
		Args:  exactArgs("KEY"),
		RunE: func(c *cobra.Command, args []string) error {
			if asJSON && onlyResult {
				return usageError("--json and --result exclude each other")
			}
			if last < 1 || last == math.MaxInt {
				return usageError("--last: give a number of runs, at least 1")
			}
			return ledger.withLedger(func(ctx context.Context, l *holdfast.Ledger, from ledgerName) error {
				runs, err := l.LastRuns(ctx, args[0], last+1) // one more shows whether there are earlier ones
				if err != nil {
					return ledgerError(err)
				}
				earlier := len(runs) > last
				runs = runs[max(0, len(runs)-last):]
				switch {
				case onlyResult:
					return printResult(c.OutOrStdout(), args[0], runs)
				case asJSON:
					return writeHistoryJSON(c.OutOrStdout(), from, args[0], runs, earlier)
				}
				return printHistory(c.OutOrStdout(), args[0], runs, earlier)
			})
		},
	}
	ledger.addFlags(c)
	addJSONFlag(c, &asJSON)
	c.Flags().IntVar(&last, "last", shownRuns, "show the last `N` runs")
	c.Flags().BoolVar(&onlyResult, "result", false, "print only the result of the run that has succeeded")
	return c
}

// printResult prints the result of the run that has succeeded. No other run follows it.
func printResult(w io.Writer, key string, runs []holdfast.RunInfo) error {
	if len(runs) == 0 {
		return neverRun(key)
	}
	last := runs[len(runs)-1]
	if last.State != holdfast.RunSucceeded {
		return exitWith(exitNoRun, "no run of %s has succeeded; the state of attempt %d is %s",
			quoteName(key), last.Attempt, last.State)
	}
	_, err := w.Write(last.Result)
	return err
}

// printHistory prints the runs of a key, and says whether earlier ones are not shown or not kept.
func printHistory(w io.Writer, key string, runs []holdfast.RunInfo, earlier bool) error {
	if len(runs) == 0 {
		_, err := fmt.Fprintf(w, "%s was never run, or its history was removed\n", quoteName(key))
		return err
	}
	last := runs[len(runs)-1]
	fmt.Fprintf(w, "%s: %s in attempt %d", quoteName(key), last.State, last.Attempt)
	if last.Fingerprint != "" {
		fmt.Fprintf(w, ", fingerprint %s", printableText(last.Fingerprint))
	}
	switch first := runs[0].Attempt; {
	case earlier:
		fmt.Fprintf(w, "; runs before attempt %d are shown with --last %d", first, last.Attempt)
	case first > 1:
		fmt.Fprintf(w, "; runs before attempt %d are not kept", first)
	}
	fmt.Fprint(w, "\n\n")
	rows := [][]string{{"ATTEMPT", "STATE", "TOKEN", "OWNER", "NOTE", "STARTED", "ENDED", "TOOK", "OUTCOME"}}
	for _, r := range runs {
		note, outcome := "-", describeRunError(r)
		if r.Meta != "" {
			note = printableText(r.Meta)
		}
		if r.State == holdfast.RunSucceeded {
			outcome = describeResult(r.Result)
		}
		rows = append(rows, []string{fmt.Sprint(r.Attempt), string(r.State), fmt.Sprint(r.Token),
			printableText(r.Owner), note, formatTime(r.StartedAt), formatTime(r.EndedAt), formatTook(r), outcome})
	}
	return writeTable(w, rows)
}

// describeResult is a result for one line: the text itself if it is short, in quotes so that no text looks like a
// size, and otherwise its size.
func describeResult(result []byte) string {
	const maxShown = 60
	text := string(result)
	if text != "" && utf8.ValidString(text) && utf8.RuneCountInString(text) <= maxShown && printableText(text) == text {
		return `"` + text + `"`
	}
	return formatSize(len(result))
}

// shortenText cuts a text so that it fits into a line of a table.
func shortenText(s string) string {
	const maxShown = 80
	if utf8.RuneCountInString(s) <= maxShown {
		return s
	}
	return strings.TrimRight(string([]rune(s)[:maxShown-3]), " ") + "..."
}

// formatSize is the size of a result.
func formatSize(n int) string {
	switch n {
	case 0:
		return "no result"
	case 1:
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", n)
}
