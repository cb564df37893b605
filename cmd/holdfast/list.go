package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

func newList(storeURL *string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list [PREFIX]",
		Short: "List the locks that are held or waited for",
		Long: `list shows the locks of the store that Holdfast clients hold or wait for, and whose names start with PREFIX. On
PostgreSQL, DynamoDB, Cloud Storage and Redlock it also shows locks that only other kinds of clients hold; on other
stores "holdfast show NAME" shows such a lock. Names with special characters are in quotes. A run that waits without
--fair may not be shown as waiting.

With --json each line is an object, as watch prints them. If there are no locks, nothing is printed.`,
		Args: prefixArg,
		RunE: func(c *cobra.Command, args []string) error {
			prefix, err := prefixOf(args)
			if err != nil {
				return err
			}
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				return listLocks(ctx, c.OutOrStdout(), client, prefix, asJSON)
			})
		},
	}
	addJSONFlag(c, &asJSON)
	return c
}

// prefixArg checks that there is a PREFIX at most.
func prefixArg(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return exactArgs("PREFIX")(c, args)
}

// prefixOf is the PREFIX that was given, or empty.
func prefixOf(args []string) (string, error) {
	if len(args) == 0 {
		return "", nil
	}
	if scheme, _, ok := strings.Cut(args[0], "://"); ok && slices.Contains(driver.Schemes(), scheme) {
		return "", usageError("a URL is not a PREFIX; give it with --store")
	}
	return args[0], nil
}

// listLocks prints the locks in the order of their names. Locks that cannot be read do not hide the others: see
// eachReadable.
func listLocks(ctx context.Context, w io.Writer, client *holdfast.Client, prefix string, asJSON bool) error {
	var locks []holdfast.Lock
	failed := eachReadable(client.List(ctx, prefix), func(lock holdfast.Lock) { locks = append(locks, lock) })
	slices.SortFunc(locks, func(a, b holdfast.Lock) int { return cmp.Compare(a.Name, b.Name) })
	if err := printLocks(w, locks, asJSON); err != nil {
		return err
	}
	if failed != nil {
		return storeError(failed)
	}
	return nil
}

// eachReadable calls f with each item of a listing that could be read. It prints the errors of the others, each on a
// line of its own, but returns the last, which is printed when the program ends.
func eachReadable[T any](items iter.Seq2[T, error], f func(T)) (failed error) {
	for item, err := range items {
		if err == nil {
			f(item)
			continue
		}
		if failed != nil {
			printMessage("%s", errorText(failed))
		}
		failed = err
	}
	return failed
}

func printLocks(w io.Writer, locks []holdfast.Lock, asJSON bool) error {
	if len(locks) == 0 {
		return nil
	}
	if asJSON {
		for _, l := range locks {
			if err := writeLockJSON(w, l); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"NAME", "KIND", "HOLDERS", "WAITING", "HELD BY", "SINCE"}}
	for _, l := range locks {
		holders, waiters := fmt.Sprint(len(l.Holders)), fmt.Sprint(len(l.Waiters))
		row := []string{quoteName(l.Name), describeKind(l), holders, waiters, "-", "-"}
		if len(l.Holders) > 0 {
			row[4], row[5] = printableText(l.Holders[0].Owner), formatTime(l.Holders[0].Since)
		}
		rows = append(rows, row)
	}
	return writeTable(w, rows)
}
