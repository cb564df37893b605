package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

func newStores(storeURL *string) *cobra.Command {
	var compare, asJSON bool
	c := &cobra.Command{
		Use:   "stores",
		Short: "Show what the store promises, and which stores exist",
		Long: `stores opens the store (of --store, HOLDFAST_STORE, or the default directory) and shows what it promises of locks and of
the runs of keys, its limits, and warnings about its settings. The last line lists the URL schemes of all stores that
this program knows.

With --compare it opens no store. It shows side by side what each kind of store promises as it is usually set up; with
--json as well, one object per line.`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			if compare {
				return printComparison(c.OutOrStdout(), asJSON)
			}
			if asJSON {
				return usageError("--json needs --compare")
			}
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				rows := append(ledgerRows(ctx, client), warningRows(ctx, client)...)
				return printPromises(c.OutOrStdout(), client.Info(), rows)
			})
		},
	}
	c.Flags().BoolVar(&compare, "compare", false, "show what each kind of store promises, side by side")
	c.Flags().BoolVar(&asJSON, "json", false, "with --compare: print lines of JSON")
	return c
}

// ledgerRows say whether the store keeps runs, and where that differs from locks, what it promises of them.
func ledgerRows(ctx context.Context, client *holdfast.Client) [][]string {
	i, err := client.Ledger(defaultLedger, nil).Info(ctx)
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
		{"a result has at most", fmt.Sprintf("%d bytes", holdfast.MaxRunResult)},
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
		{"locks and tokens survive", describeSurvives(i.Survives)},
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

func describeSurvives(s holdfast.Survives) string {
	var list []string
	for _, x := range []struct {
		what string
		does bool
	}{
		{"a restart of the store", s.Restart},
		{"a power cut", s.PowerCut}, {"a failover", s.Failover},
	} {
		if x.does {
			list = append(list, x.what)
		}
	}
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
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
