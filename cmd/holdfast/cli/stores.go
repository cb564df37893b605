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
	"github.com/holdfast-go/holdfast/driver"
)

func newStores(storeURL *string) *cobra.Command {
	var compare, options, asJSON bool
	c := &cobra.Command{
		Use:   "stores [URL]",
		Short: "Show what the store promises, and which stores exist",
		Long: `stores opens the store and shows where its URL is from (see "holdfast help configuration"), what it promises of locks and
of the runs of keys, its limits, and warnings about its settings. The last line lists the URL schemes of all stores that
this program knows.

With --compare it opens no store. It shows side by side what each kind of store promises as it is usually set up.

With --options it opens no store either. It shows what the URL of the store looks like, and all options that it can have:
of the store that is used, or of the URL that is given. A scheme such as redis will do. A URL is also checked.`,
		Args: func(_ *cobra.Command, args []string) error {
			if options && len(args) == 1 {
				return nil
			}
			return exactArgs()(nil, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case options && compare:
				return usageError("--options and --compare do not go together")
			case options:
				return printURLOptions(c.OutOrStdout(), *storeURL, args, asJSON)
			case compare:
				return printComparison(c.OutOrStdout(), asJSON)
			}
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				ledger, ledgerErr := client.Ledger(defaultLedger, nil).Info(ctx)
				findings, unseen := client.Examine(ctx)
				if asJSON {
					f := promisesAsJSON(client.Info())
					f["run_ledger"], f["findings"] = ledgerAsJSON(ledger, ledgerErr), shown.NewFindings(findings)
					if unseen != nil {
						f["findings_message"] = errorText(unseen)
					}
					return writeRecord(c.OutOrStdout(), recordStore, f)
				}
				rows := slices.Concat(originRows(), ledgerRows(ledger, ledgerErr), warningRows(findings, unseen))
				return printPromises(c.OutOrStdout(), client.Info(), rows)
			})
		},
	}
	c.Flags().BoolVar(&compare, "compare", false, "show what each kind of store promises, side by side")
	c.Flags().BoolVar(&options, "options", false, "show what the URL looks like, and its options")
	addJSONFlag(c, &asJSON)
	return c
}

// promisesAsJSON are the promises of a store for programs.
func promisesAsJSON(i holdfast.Info) fields {
	f := fields{
		"store": i.Store, "engine": i.Engine, "tier": i.Tier, "expired_by": i.ExpiredBy, "expiry_clock": i.ExpiryClock,
		"order": i.Order, "kinds": append([]holdfast.Kind{}, i.Kinds...), "detached": i.Detached,
		"survives": fields{"restart": i.Survives.Restart, "power_cut": i.Survives.PowerCut,
			"failover": i.Survives.Failover},
		"min_ttl_ms": shown.Millis(i.MinTTL), "max_ttl_ms": shown.Millis(i.MaxTTL), "max_name_bytes": i.MaxName,
		"max_holders": i.MaxHolders, "max_waiters": i.MaxWaiters, "token_gap_ms": shown.Millis(i.TokenGap),
		"schemes": driver.Schemes(),
	}
	if i.DeadHolderTimeout > 0 {
		f["killed_holder_ms"] = shown.Millis(i.DeadHolderTimeout)
	}
	if i.WriteInterval > 0 {
		f["write_interval_ms"] = shown.Millis(i.WriteInterval)
	}
	if i.TokenRegression != "" {
		f["token_regression"] = i.TokenRegression
	}
	return f
}

// ledgerAsJSON says whether the store keeps runs, and its limits.
func ledgerAsJSON(i holdfast.Info, err error) fields {
	switch {
	case errors.Is(err, holdfast.ErrUnsupported):
		return fields{"supported": false}
	case err != nil:
		return fields{"supported": true, "message": errorText(err)}
	}
	return fields{"supported": true, "expiry_clock": i.ExpiryClock, "max_key_bytes": i.MaxName,
		"max_result_bytes": i.MaxRunResult}
}

// ledgerRows say whether the store keeps runs, and where that differs from locks, what it promises of them.
func ledgerRows(i holdfast.Info, err error) [][]string {
	switch {
	case errors.Is(err, holdfast.ErrUnsupported):
		return [][]string{{"run ledger", "no"}}
	case err != nil:
		return [][]string{{"run ledger", "cannot be used: " + printableText(errorText(err))}}
	}
	takeover := describeTakeover(i)
	if i.ExpiryClock == holdfast.ExpiryClockObserver {
		takeover = "when five thirds of its TTL and two seconds have passed, at the latest"
	}
	return [][]string{
		{"run ledger", "yes"},
		{"expiry of runs is judged by", i.ExpiryClock.Description()},
		{"a killed worker is replaced", takeover},
		{"a key has at most", fmt.Sprintf("%d bytes", i.MaxName)},
		{"a result has at most", fmt.Sprintf("%d bytes", i.MaxRunResult)},
	}
}

func printPromises(w io.Writer, i holdfast.Info, more [][]string) error {
	kinds := make([]string, len(i.Kinds))
	for n, k := range i.Kinds {
		kinds[n] = string(k)
	}
	rows := [][]string{
		{"store", printableText(i.Store)},
		{"engine", i.Engine},
		{"tier", i.Tier.Description()},
		{"a dead holder is ended by", i.ExpiredBy.Description()},
		{"expiry is judged by", i.ExpiryClock.Description()},
		{"a killed holder is replaced", describeTakeover(i)},
		{"order", i.Order.Description()},
		{"kinds of locks", cmp.Or(strings.Join(kinds, ", "), "none: it keeps a run ledger alone")},
		{"locks can outlive their process", formatYesNo(i.Detached)},
		{"locks and tokens survive", shown.DescribeSurvives(i)},
		{"tokens can go down", describeRegression(i)},
		{"TTL", fmt.Sprintf("%v to %v", i.MinTTL, i.MaxTTL)},
		{"a name has at most", fmt.Sprintf("%d bytes", i.MaxName)},
		{"a lock carries at most", fmt.Sprintf("%d holders, %d waiting", i.MaxHolders, i.MaxWaiters)},
	}
	if i.WriteInterval > 0 {
		rows = append(rows, []string{"new claims on a lock", "at most one every " + i.WriteInterval.String()})
	}
	if err := writeTable(w, append(rows, more...)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nstores known: %s\n", strings.Join(driver.Schemes(), ", "))
	return err
}

func formatYesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// describeTakeover is how soon others get the lock of a holder that was killed.
func describeTakeover(i holdfast.Info) string {
	if i.DeadHolderTimeout == 0 {
		return "when its TTL has passed"
	}
	return "within " + i.DeadHolderTimeout.String()
}

// describeRegression is when a fencing token may be smaller than an earlier one of the same lock.
func describeRegression(i holdfast.Info) string {
	switch {
	case i.TokenRegression != "":
		return i.TokenRegression
	case i.TokenGap > 0:
		return fmt.Sprintf("if a record is removed less than %v after its last grant",
			i.TokenGap.Round(time.Millisecond))
	}
	return "never"
}
