package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/failure"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
)

const ledgerRetryHelp = `retry lets one more run of KEY begin, if its last run has failed or was abandoned: whatever the pause between attempts,
and even if all attempts are used. It starts nothing itself: the next worker that asks for KEY gets it.

retry exits 1 if KEY was never run or has succeeded, and 75 if a run is in progress. It then changes nothing.`

const ledgerForgetHelp = `forget removes all runs of KEY, so that it can be run from the beginning.

If KEY has succeeded, its work is then done again by the next worker that asks for KEY, so that needs --force.

forget exits 1 if KEY was never run, 64 if KEY has succeeded and --force is not given, and 75 if a run is in progress.
It then changes nothing.`

func newLedgerRetry(storeURL *string) *cobra.Command {
	ledger := ledgerFlags{store: storeURL}
	var asJSON bool
	c := &cobra.Command{
		Use:   "retry KEY",
		Short: "Let one more run of a failed or abandoned key begin",
		Long:  ledgerRetryHelp,
		Args:  exactArgs("KEY"),
		RunE: func(c *cobra.Command, args []string) error {
			return ledger.withLedger(func(ctx context.Context, l *holdfast.Ledger, from ledgerName) error {
				last, err := changeRuns(ctx, l, operator.Retry, args[0], false)
				switch {
				case err != nil:
					return err
				case asJSON:
					return writeRecord(c.OutOrStdout(), recordRetry, fields{"store": from.store, "ledger": from.ledger,
						"key": args[0], "last_run": runAsJSON(last)})
				}
				last.Error = shortenText(last.Error)
				_, err = fmt.Fprintf(c.OutOrStdout(),
					"one more run of %s can begin at once; attempt %d ended as %s: %s\n", quoteName(args[0]), last.Attempt, last.State, describeRunError(last))
				return err
			})
		},
	}
	ledger.addFlags(c)
	addJSONFlag(c, &asJSON)
	return c
}

func newLedgerForget(storeURL *string) *cobra.Command {
	ledger := ledgerFlags{store: storeURL}
	var force, asJSON bool
	c := &cobra.Command{
		Use:   "forget KEY [--force]",
		Short: "Remove the runs of a key, so that it can be run from the beginning",
		Long:  ledgerForgetHelp,
		Args:  exactArgs("KEY"),
		RunE: func(c *cobra.Command, args []string) error {
			return ledger.withLedger(func(ctx context.Context, l *holdfast.Ledger, from ledgerName) error {
				_, err := changeRuns(ctx, l, operator.Forget, args[0], force)
				switch {
				case err != nil:
					return err
				case asJSON:
					return writeRecord(c.OutOrStdout(), recordForget,
						fields{"store": from.store, "ledger": from.ledger, "key": args[0]})
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "the history of %s is removed; its next run is attempt 1\n",
					quoteName(args[0]))
				return err
			})
		},
	}
	ledger.addFlags(c)
	addJSONFlag(c, &asJSON)
	c.Flags().BoolVar(&force, "force", false, "remove also the runs of a key that has succeeded")
	return c
}

// changeRuns carries out an action on the runs of a key, and returns the last one as it was. It checks first what is
// lost. Between the check and the action a run may end: an operator who changes a key that is being run must expect
// that.
func changeRuns(ctx context.Context, l *holdfast.Ledger, action operator.Action, key string,
	force bool) (last holdfast.RunInfo, err error) {
	runs, err := l.LastRuns(ctx, key, 1)
	switch {
	case err != nil:
		return last, ledgerError(err)
	case len(runs) == 0:
		return last, neverRun(key)
	}
	last = runs[len(runs)-1]
	if operator.RepeatsSuccess(action, last) && !force {
		return last, usageError("%s has succeeded in attempt %d, and without its history it is run again; to do that, give "+
			"--force", quoteName(key), last.Attempt)
	}
	if err = operator.CheckRun(action, last); err == nil {
		err = operator.ActOnRun(ctx, l, action, key)
	}
	if err != nil {
		return last, changeRefused(key, err)
	}
	return last, nil
}

// changeRefused explains why an operator's change of a key was refused, and what to do instead.
func changeRefused(key string, err error) *exitError {
	var refused *holdfast.RunError
	if !errors.As(err, &refused) {
		return ledgerError(err)
	}
	run := refused.Run
	switch {
	case errors.Is(err, holdfast.ErrSucceeded):
		return exitWith(failure.Of(err).Exit, "%s has succeeded in attempt %d, so there is nothing to retry; "+
			"to run it again in spite of that, use: holdfast ledger forget --force", quoteName(key), run.Attempt)
	case errors.Is(err, holdfast.ErrInProgress):
		return exitWith(failure.Of(err).Exit, "a run of %s is in progress: attempt %d by %s since %s; "+
			"wait for its end, or stop its worker and wait until the run is abandoned; see holdfast ledger --help",
			quoteName(key), run.Attempt, printableText(run.Owner), formatTime(run.StartedAt))
	}
	return ledgerError(err)
}

func neverRun(key string) *exitError {
	return exitWith(exitNoRun, "%s was never run, or its history was removed", quoteName(key))
}
