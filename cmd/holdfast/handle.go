package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
)

const acquireHelp = `acquire takes the lock NAME, prints a handle, and leaves the lock held with nobody behind it: it stands until its --ttl has
passed, or until renew or release is given the handle, by this process's shell or by any other.

    h=$(holdfast acquire --ttl 10m deploy) || exit
    ./step-one && holdfast renew "$h" && ./step-two
    holdfast release "$h"

Without release, or with its output closed or thrown away, it is a timed lock. Nothing watches over the work in between: what
goes on after the TTL goes on without the lock. Use run where you can.

The handle is one line of JSON, with the lock's fencing token in "token". Whoever has it can give the lock away.`

// lockHandle is what acquire prints: the library's, and the store that it is for.
type lockHandle struct {
	holdfast.Handle
	Store string `json:"store"`
}

func newAcquire(storeURL *string) *cobra.Command {
	f := lockFlags{store: storeURL}
	c := &cobra.Command{
		Use:   "acquire [flags] NAME",
		Short: "Take a lock for a time, and print a handle for renew and release",
		Long:  acquireHelp,
		Args:  exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			request, err := f.newRequest(c, args[0], "acquire")
			if err != nil {
				return err
			}
			return acquireAndDetach(request, *f.store)
		},
		DisableFlagsInUseLine: true,
	}
	f.addFlags(c)
	return c
}

func acquireAndDetach(request *lockRequest, store string) error {
	client, lease, err := request.acquireUntilSignal(store, catchSignals(), nil)
	if client != nil {
		defer closeClient(client)
	}
	if err != nil {
		return err
	}
	h, err := detachLease(client, lease)
	if err != nil {
		return err
	}
	line, err := json.Marshal(lockHandle{h, client.Info().Store})
	if err == nil {
		_, err = fmt.Fprintln(os.Stdout, string(line))
	}
	if err == nil {
		return nil
	}
	// Nobody has the handle, so nobody could give the lock back.
	return exitWith(exitOutputFailed, "the handle cannot be printed, and %s: %s", releaseUnprinted(client, h), rootCause(err))
}

// detachLease makes the lock stand with nobody behind it. It is given back if that is not certain to have worked: the handle of a
// claim that may end with this process is worth nothing.
func detachLease(client *holdfast.Client, lease *holdfast.Lease) (holdfast.Handle, error) {
	h, err := lease.Detach()
	switch {
	case err == nil:
		return h, nil
	case errors.Is(err, holdfast.ErrLost):
		return h, exitWith(exitLost, "%s is lost: %s", quoteName(lease.Name()), lossText(err))
	case errors.Is(err, holdfast.ErrUncertain):
		return h, exitWith(exitUnavailable, "no handle could be made, and %s: %s", releaseUnprinted(client, h), errorText(err))
	}
	_ = lease.Release()
	return h, storeError(err)
}

// releaseUnprinted gives a lock back whose handle nobody has, and says what became of it.
func releaseUnprinted(client *holdfast.Client, h holdfast.Handle) string {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := runWithTimeout(2*closeTimeout, func() error { return client.Release(ctx, h) })
	if err != nil && !errors.Is(err, holdfast.ErrLost) {
		return quoteName(h.Name) + " may stand until its TTL is over"
	}
	return quoteName(h.Name) + " was given back"
}

func newRenew(storeURL *string) *cobra.Command {
	return &cobra.Command{
		Use:   "renew HANDLE",
		Short: "Renew a lock taken by acquire",
		Long: `renew makes the lock of a handle last for its TTL from now. With - the handle is read from standard input, where others on
the machine cannot see it. Exits 76 if the lock is lost: nothing brings it back. A lock that an operator broke is free for
others when renew has said so: let no work go on under it while renew runs, or release it at the end of the work instead.`,
		Args: exactArgs("HANDLE"),
		RunE: func(_ *cobra.Command, args []string) error {
			return withHandle(*storeURL, args[0], renewHandle)
		},
	}
}

func newRelease(storeURL *string) *cobra.Command {
	return &cobra.Command{
		Use:   "release HANDLE",
		Short: "Give back a lock taken by acquire",
		Long: `release gives the lock of a handle back. With - the handle is read from standard input, where others on the machine cannot
see it. Exits 76 if the lock was lost before, or an operator broke it.`,
		Args: exactArgs("HANDLE"),
		RunE: func(_ *cobra.Command, args []string) error {
			return withHandle(*storeURL, args[0], func(ctx context.Context, client *holdfast.Client, h holdfast.Handle) error {
				if err := renewHandle(ctx, client, h); errors.Is(err, holdfast.ErrLost) { // only a renewal hears that it was broken
					return err
				}
				return client.Release(ctx, h)
			})
		},
	}
}

// renewHandle renews a lock, and gives up one that an operator broke: its holder has heard it then.
func renewHandle(ctx context.Context, client *holdfast.Client, h holdfast.Handle) error {
	err := client.Renew(ctx, h)
	var loss *holdfast.LossError
	if errors.As(err, &loss) && loss.Cause == holdfast.LossBroken {
		if stands := client.Release(ctx, h); stands != nil && !errors.Is(stands, holdfast.ErrLost) {
			printMessage("%s may stand until its TTL is over: %s", quoteName(h.Name), errorText(stands))
		}
	}
	return err
}

// maxHandleSize is more than any handle is long.
const maxHandleSize = 64 << 10

// withHandle runs f with a handle and a client of its store.
func withHandle(store, arg string, f func(context.Context, *holdfast.Client, holdfast.Handle) error) error {
	if arg == "-" {
		in, err := io.ReadAll(io.LimitReader(os.Stdin, maxHandleSize))
		if err != nil {
			return usageError("the handle cannot be read: %s", rootCause(err))
		}
		arg = string(in)
	}
	var h lockHandle
	if err := json.Unmarshal([]byte(strings.TrimSpace(arg)), &h); err != nil || h.Name == "" || h.Store == "" {
		return usageError("that is no handle; acquire prints one")
	}
	return withClient(store, func(ctx context.Context, client *holdfast.Client) error {
		if here := client.Info().Store; h.Store != here {
			return usageError("the handle is for the store %s, and this is %s", printableText(h.Store), printableText(here))
		}
		ctx, cancel := context.WithTimeout(ctx, handleTimeout)
		defer cancel()
		err := f(ctx, client, h.Handle)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, holdfast.ErrLost):
			return exitWith(exitLost, "%s is lost: %s", quoteName(h.Name), lossText(err))
		}
		return storeError(err)
	})
}

// handleTimeout is for one request.
const handleTimeout = 10 * time.Second
