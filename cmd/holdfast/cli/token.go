package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

// maxTokenLead is how far ahead of the store's clock a token may be raised without --force: more than any clock that
// was set wrong by hand or by a time zone, and less than what a mistyped digit makes.
const maxTokenLead = 24 * time.Hour

func newToken(storeURL *string) *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Show or raise the fencing tokens, after a store was restored or replaced",
		Long: `A resource that checks fencing tokens refuses tokens that are smaller than the largest one it has seen. After a store was
restored from a backup, or replaced by another one, it may grant such tokens. Then show tells how large the tokens are,
and floor raises them.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("a subcommand is missing: show or floor")
			}
			return usageError("unknown subcommand %q of token; it has show and floor", args[0])
		},
	}
	c.AddCommand(newTokenShow(storeURL), newTokenFloor(storeURL))
	return c
}

func newTokenShow(storeURL *string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show NAME",
		Short: "Show the largest token of a lock, and how small the tokens to come can be",
		Long: `show prints the largest fencing token that was granted on the lock NAME, as far as the store knows it, and the smallest that
can be granted from now on, on any lock of the store.`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				lock, err := client.Inspect(ctx, args[0])
				if err != nil {
					return storeError(err)
				}
				floor, err := client.ReadTokenFloor(ctx)
				if err != nil {
					return storeError(err)
				}
				return printToken(c, client.Info().Store, lock, floor, asJSON)
			})
		},
	}
	addJSONFlag(c, &asJSON)
	return c
}

func printToken(c *cobra.Command, store string, lock holdfast.Lock, floor holdfast.TokenFloor, asJSON bool) error {
	if asJSON {
		f := fields{"store": store, "lock": lock.Name, "floor": floor.Token, "floor_by_clock": floor.ByClock}
		if lock.Token > 0 {
			f["token"] = lock.Token
		}
		return writeRecord(c.OutOrStdout(), recordToken, f)
	}
	last := "not known"
	if lock.Token > 0 {
		last = fmt.Sprint(lock.Token)
	}
	from := "counted by the store"
	if floor.ByClock {
		from = "the store's clock, in microseconds since 1970"
	}
	return writeTable(c.OutOrStdout(), [][]string{
		{"largest token of " + quoteName(lock.Name), last},
		{"tokens to come, of all locks, at least", fmt.Sprintf("%d (%s)", floor.Token, from)},
	})
}

func newTokenFloor(storeURL *string) *cobra.Command {
	var t tokenRaise
	var all bool
	c := &cobra.Command{
		Use:   "floor {NAME|--all} --at-least N",
		Short: "Raise the tokens of a lock above what resources have seen",
		Long: `floor makes sure that no token smaller than N is granted on the lock NAME from now on. A holder keeps its token until it has
released the lock. Tokens never fall again, so N should be one more than the largest token that a resource has seen.

With --all it checks that for every lock of the store, even for those that were never used. Most stores make their tokens
from their clock, and then this is so as soon as the clock has passed N. etcd, ZooKeeper and Consul count their tokens,
for clients of every make: there, floor prints what to do on the servers.

floor exits 64, and changes nothing, if the store's tokens cannot be raised in this way.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case !c.Flags().Changed("at-least"):
				return usageError("--at-least is missing: give one more than the largest token that a resource has seen")
			case all && len(args) > 0:
				return usageError("give either a NAME or --all")
			case !all && len(args) != 1:
				return usageError("give one NAME, or --all")
			}
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				if all {
					return t.checkAll(ctx, c, client)
				}
				return t.raise(ctx, c, client, args[0])
			})
		},
	}
	c.Flags().Int64Var(&t.atLeast, "at-least", 0, "the smallest token `N` that may still be granted")
	c.Flags().BoolVar(&all, "all", false, "all locks of the store")
	c.Flags().BoolVar(&t.force, "force", false, "raise the token even if it is far ahead of the store's clock")
	addJSONFlag(c, &t.asJSON)
	return c
}

// tokenRaise is one run of token floor.
type tokenRaise struct {
	atLeast       int64
	force, asJSON bool
}

func (t *tokenRaise) checkAll(ctx context.Context, c *cobra.Command, client *holdfast.Client) error {
	if err := client.CheckTokens(ctx, t.atLeast); err != nil {
		return storeError(err)
	}
	if t.asJSON {
		return writeRecord(c.OutOrStdout(), recordTokenFloor,
			fields{"store": client.Info().Store, "all": true, "at_least": t.atLeast})
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "no token smaller than %d is granted from now on, on any lock\n", t.atLeast)
	return err
}

// raise raises the token of one lock, and says which holder still has a smaller one.
func (t *tokenRaise) raise(ctx context.Context, c *cobra.Command, client *holdfast.Client, name string) error {
	lock, err := client.Inspect(ctx, name)
	if err != nil {
		return storeError(err)
	}
	floor, err := client.ReadTokenFloor(ctx)
	if err != nil {
		return storeError(err)
	}
	lead := t.atLeast - max(floor.Token, lock.Token)
	if t.atLeast > 0 && floor.ByClock && lead > maxTokenLead.Microseconds() && !t.force {
		return exitWith(exitUsage, "%d is %s ahead of the tokens of %s: is it mistyped? With --force, its tokens rise "+
			"only by one per grant from there on, until the store's clock has passed it", t.atLeast, formatLead(lead),
			quoteName(name))
	}
	if err := client.RaiseToken(ctx, name, t.atLeast); err != nil {
		return storeError(err)
	}
	for _, h := range lock.Holders {
		if h.Token > 0 && h.Token < t.atLeast {
			printMessage("%s keeps its token %d until it has released %s: a resource that has seen a larger one refuses it",
				printableText(h.Owner), h.Token, quoteName(name))
		}
	}
	if t.asJSON {
		return writeRecord(c.OutOrStdout(), recordTokenFloor, fields{"store": client.Info().Store, "lock": name,
			"all": false, "at_least": t.atLeast, "holders": shown.NewClaims(lock.Holders, shown.PlainRef)})
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "no token smaller than %d is granted from now on, on %s\n", t.atLeast,
		quoteName(name))
	return err
}

// formatLead writes a number of microseconds as people say it. It may be more than a time.Duration can hold.
func formatLead(micros int64) string {
	const day = int64(24 * time.Hour / time.Microsecond)
	if micros >= 730*day {
		return fmt.Sprintf("%d years", micros/(365*day))
	}
	return fmt.Sprintf("%d days", micros/day)
}
