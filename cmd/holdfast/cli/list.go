package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/driver"
)

func newList(storeURL *string) *cobra.Command {
	l := lockList{order: "name"}
	c := &cobra.Command{
		Use:   "list [PREFIX]",
		Short: "List the locks that are held or waited for",
		Long: `list shows the locks of the store that somebody holds or waits for, and whose names start with PREFIX. Locks that only
other kinds of clients hold are shown where they can be told from other data: on PostgreSQL, MySQL, DynamoDB, S3, Cloud
Storage, Kubernetes, Consul and Redlock; on etcd if they have the names that etcd's own clients give them; on ZooKeeper
if the URL has a namespace; on Redis if it has a prefix or a template. "holdfast show NAME" shows any lock. Names with
special characters are in quotes.

WAITING is the number of claims that wait; - means that it is not known, and 3+ that there may be more than 3: a run that
waits without --fair for a plain lock waits in its own process, on most stores, and is not seen. STATE is held, or waited
for; broken (its holder has not released it yet), detached (held without a process, see acquire) or foreign (held by
another kind of client). EXPIRES is when the lock expires if its holder stops renewing it; - means that this is not known, or that another kind of
client holds the lock without an end: then holdfast break --force ends it.

On a terminal, long texts are shortened to its width, and broken, detached and foreign locks have a color, unless
NO_COLOR is set. --watch shows the locks again and again, until a signal ends it or the store fails (69).

With --json each lock is a record of the type "lock". If there are no locks, nothing is printed, besides a line on a
terminal that says so.`,
		Args: prefixArg,
		RunE: func(c *cobra.Command, args []string) error {
			prefix, err := prefixOf(args)
			if err != nil {
				return err
			}
			l.prefix = prefix
			switch {
			case l.watch && l.asJSON:
				return usageError("--watch and --json exclude each other; for a stream of JSON, use holdfast watch NAME")
			case l.watch:
				return l.repeat(*storeURL, c.OutOrStdout())
			}
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				return l.print(ctx, c.OutOrStdout(), client)
			})
		},
	}
	addJSONFlag(c, &l.asJSON)
	c.Flags().Var(&l.order, "sort", "`ORDER` of the locks: "+strings.Join(lockOrderNames, ", "))
	c.Flags().BoolVarP(&l.watch, "watch", "w", false, "show the locks again every 2s, until a signal or an error of the store")
	return c
}

// lockList is one run of list.
type lockList struct {
	prefix        string
	order         lockOrder
	asJSON, watch bool
}

// listInterval is the pause between two listings of --watch.
const listInterval = 2 * time.Second

// clearScreen is what a terminal is sent before the next listing.
const clearScreen = "\x1b[H\x1b[2J"

// repeat lists until an error. A signal ends the program at once: it holds nothing.
func (l *lockList) repeat(store string, w io.Writer) error {
	ctx := context.Background()
	client, err := openClient(ctx, store, nil)
	if err != nil {
		return err
	}
	defer closeClient(client)
	for {
		head := time.Now().Format(time.RFC3339) + "\n"
		if newDisplay(w).width > 0 {
			head = clearScreen + head
		}
		if _, err := io.WriteString(w, head); err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, queryTimeout)
		err := l.print(limited, w, client)
		cancel()
		if err != nil {
			return err
		}
		if err := sleepContext(ctx, listInterval); err != nil {
			return err
		}
	}
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

// print prints the locks once. Locks that cannot be read do not hide the others: see eachReadable.
func (l *lockList) print(ctx context.Context, w io.Writer, client *holdfast.Client) error {
	var locks []holdfast.Lock
	failed := eachReadable(client.List(ctx, l.prefix), func(lock holdfast.Lock) { locks = append(locks, lock) })
	sortLocks(locks, l.order)
	if err := printLocks(w, client.Info(), locks, l.asJSON); err != nil {
		return err
	}
	switch {
	case failed != nil:
		return storeError(failed)
	case len(locks) == 0 && !l.asJSON:
		return newDisplay(w).tellNothing("no lock is held or waited for")
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

// printLocks prints a line per lock, or JSON Lines. Of several holders it shows the first.
func printLocks(w io.Writer, info holdfast.Info, locks []holdfast.Lock, asJSON bool) error {
	if len(locks) == 0 {
		return nil
	}
	if asJSON {
		for _, l := range locks {
			if err := writeLockJSON(w, info, l); err != nil {
				return err
			}
		}
		return nil
	}
	d := newDisplay(w)
	rows := [][]string{{"NAME", "KIND", "STATE", "HOLDERS", "WAITING", "HELD BY", "NOTE", "SINCE", "EXPIRES"}}
	for _, l := range locks {
		rows = append(rows, []string{quoteName(l.Name), describeKind(l), lockState(l), fmt.Sprint(len(l.Holders)),
			shown.CountWaiters(info, l), "-", "-", "-", "-"})
		if len(l.Holders) > 0 {
			h, row := l.Holders[0], rows[len(rows)-1]
			row[5], row[6] = printableText(h.Owner), cmp.Or(printableText(h.Meta), "-")
			row[7], row[8] = d.formatSince(h.Since), formatExpiry(h.Remaining)
		}
	}
	return d.writeTable(rows, 0, 5, 6)
}

// lockState is the state of a lock in one word, by its first holder.
func lockState(l holdfast.Lock) string {
	if len(l.Holders) == 0 {
		return "waited for"
	}
	return claimState(l.Holders[0], "held")
}

// claimState is the state of a claim, or usual.
func claimState(s holdfast.ClaimInfo, usual string) string {
	switch {
	case s.Broken:
		return "broken" // it still excludes others, until its holder has released it or it expires
	case s.Foreign:
		return "foreign"
	case s.Detached:
		return "detached"
	}
	return usual
}

// formatSince is a time. A terminal has room only for its distance from now.
func (d *display) formatSince(t time.Time) string {
	if d.width > 0 && !t.IsZero() {
		return formatRelative(time.Until(t))
	}
	return formatTime(t)
}

// formatExpiry says when a claim expires, for a table.
func formatExpiry(remaining time.Duration) string {
	if remaining <= 0 {
		return "-"
	}
	return formatRelative(remaining)
}
