package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
)

const requestReleaseHelp = `request-release asks the holder of NAME to release it. It takes nothing away: the holder decides. Use break to take a
lock away.

The holder learns of the request at its next renewal, after at most a third of its TTL. A program that uses the library
learns it from Lease.ReleaseRequested. holdfast run and holdfast hold print a message on stderr, add the event
release_requested to the file of --events, and continue; their --on-request says what else they do.

If the lock has several holders, give the REF of one that "holdfast show NAME" prints. The REF of a waiter is notified
once it holds the lock.

request-release exits 1 if nobody holds the lock.`

func newRequestRelease(storeURL *string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "request-release NAME [REF]",
		Short: "Ask the holder of a lock to release it",
		Long:  requestReleaseHelp,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 2 && args[1] == "" { // a variable of a script that was not set
				return usageError("the REF is empty; give one, or leave it out")
			}
			return exactArgs([]string{"NAME", "REF"}[:max(1, min(len(args), 2))]...)(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			ref := ""
			if len(args) > 1 {
				ref = args[1]
			}
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				return requestRelease(ctx, c, client, args[0], ref, asJSON)
			})
		},
	}
	addJSONFlag(c, &asJSON)
	return c
}

// requestRelease asks the chosen claim to release the lock, and says when it learns of that.
func requestRelease(ctx context.Context, c *cobra.Command, client *holdfast.Client, name, ref string,
	asJSON bool) error {
	lock, err := client.Inspect(ctx, name)
	if err != nil {
		return storeError(err)
	}
	claim, err := chooseClaim(lock, name, ref, "give the REF of one")
	if err != nil {
		return err
	}
	if err := claim.Act(ctx, client, operator.RequestRelease, ""); err != nil {
		return foreignError(err, claim)
	}
	if asJSON {
		return writeRecord(c.OutOrStdout(), recordReleaseRequest, changeAsJSON(client.Info(), claim))
	}
	when := "at its next renewal"
	if claim.Waits {
		when = "once it holds the lock"
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "%s is asked to release %s; it learns of the request %s\n",
		printableText(claim.Owner), quoteName(name), when)
	return err
}
