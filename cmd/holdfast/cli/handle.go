package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/driver/boot"
)

// lockHandle is what renew and release need of a handle, which acquire prints.
type lockHandle struct {
	holdfast.Handle
	store       string
	expires     time.Time   // if nobody renews it, by the clock of the machine that acquired it
	bootExpires bootInstant // the same, by the boot clock of that machine; zero in handles that do not have it
}

// bootInstant is a time by the boot clock of a machine, which nobody can set.
type bootInstant struct {
	boot string // the id of the boot
	at   time.Duration
}

// bootNow is the present time, or zero if it is not known which boot this is.
func bootNow() bootInstant {
	id, err1 := boot.ID()
	shift, err2 := boot.ClockShift()
	if errors.Join(err1, err2) != nil {
		return bootInstant{}
	}
	return bootInstant{id, guard.BoottimeNow() - shift}
}

// hasTimeLeft reports whether it is certain that the TTL of the handle has not passed. Only the boot in which the
// handle was made can tell. Its wall clock must agree: a virtual machine that was stopped goes on with its boot clock
// where that stood.
func (h lockHandle) hasTimeLeft() bool {
	now := bootNow()
	return now.boot != "" && now.boot == h.bootExpires.boot && now.at < h.bootExpires.at && time.Now().Before(h.expires)
}

// handleRecord is a handle in JSON.
type handleRecord struct {
	Type    recordType    `json:"type"`
	Store   string        `json:"store"`
	Lock    string        `json:"lock"`
	Kind    holdfast.Kind `json:"kind"`
	Limit   int64         `json:"limit"`
	Weight  int64         `json:"weight"`
	TTL     int64         `json:"ttl_ms"`
	ID      string        `json:"id"`
	Ref     string        `json:"ref"`
	Token   int64         `json:"token"`
	Expires time.Time     `json:"expires"`

	Boot        string `json:"boot"`
	BootExpires int64  `json:"boot_expires_ms"`
}

// writeHandle writes a handle as one line of JSON. Its claim was detached since a time.
func writeHandle(w io.Writer, store string, h holdfast.Handle, permits []int64, since time.Time, bootSince bootInstant) error {
	f := fields{
		"store": store, "lock": h.Name, "kind": h.Kind, "limit": h.Limit, "weight": h.Weight,
		"ttl_ms": shown.Millis(h.TTL), "id": h.ID, "ref": h.Ref, "token": h.Token, "expires": shown.FormatTime(since.Add(h.TTL)),
	}
	if permits != nil {
		f["permits"] = permits
	}
	if bootSince.boot != "" {
		f["boot"], f["boot_expires_ms"] = bootSince.boot, (bootSince.at + h.TTL).Milliseconds()
	}
	return writeRecord(w, recordHandle, f)
}

// parseHandle reads what writeHandle has written.
func parseHandle(text string) (h lockHandle, err error) {
	var r handleRecord
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return h, err
	}
	if r.Type != recordHandle || r.Lock == "" || r.Store == "" || r.TTL <= 0 || r.ID == "" {
		return h, errors.New("it is no record of a handle")
	}
	return lockHandle{
		Handle: holdfast.Handle{Name: r.Lock, Kind: r.Kind, Limit: r.Limit, Weight: r.Weight,
			TTL: time.Duration(r.TTL) * time.Millisecond, ID: r.ID, Ref: r.Ref, Token: r.Token},
		store: r.Store, expires: r.Expires,
		bootExpires: bootInstant{r.Boot, time.Duration(r.BootExpires) * time.Millisecond},
	}, nil
}

func newAcquire(storeURL *string) *cobra.Command {
	f := lockFlags{store: storeURL}
	var messages messageFlags
	var storeWait storeWaitFlag
	c := &cobra.Command{
		Use:   "acquire [flags] NAME",
		Short: "Acquire a lock without a process, and print a handle for renew and release",
		Long:  acquireHelp,
		Args:  exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			if !c.Flags().Changed("ttl") {
				return usageError("--ttl is missing: how long %s may stay held without a renew, such as --ttl 10m",
					quoteName(args[0]))
			}
			request, err := f.newRequest(c, args[0], "acquire")
			if err != nil {
				return err
			}
			if err := messages.checkMessageFlags(); err != nil {
				return err
			}
			request.messages, request.storeWait = messages, storeWait.storeWaitLimit(c, f.wait)
			request.detached = true
			err = messages.silenceSkip(acquireAndDetach(request, *f.store))
			if exit := (*exitError)(nil); f.skipOK && errors.As(err, &exit) && exit.code == 0 {
				exit.err = nil // a script sees it by the empty handle
			}
			return err
		},
		DisableFlagsInUseLine: true,
	}
	f.addFlags(c)
	messages.addMessageFlags(c)
	storeWait.addStoreWaitFlag(c)
	ttl := c.Flags().Lookup("ttl")
	ttl.DefValue = "0s" // which pflag does not print
	ttl.Usage = "how long the lock stays held if it is neither renewed nor released, 1s to 24h (required)"
	groupFlags(c, lockFlagGroups, "")
	return c
}

// acquireAndDetach acquires the lock, detaches it from this process, and prints its handle. If the handle cannot be
// printed, it releases the lock.
func acquireAndDetach(request *lockRequest, store string) error {
	if isClosedOutput(os.Stdout) {
		return exitWith(exitOutputFailed, "the handle cannot be printed: standard output is closed, or it is %s opened for "+
			"reading, too; to do without the handle, write >%s", os.DevNull, os.DevNull)
	}
	client, lease, err := request.acquireUntilSignal(store, catchSignals(), nil)
	if client != nil {
		defer closeClient(client)
	}
	if err != nil {
		return err
	}
	since, bootSince := time.Now(), bootNow()
	h, err := detachLease(client, lease)
	if err != nil {
		return err
	}
	permits, _ := lease.Permits()
	if err = writeHandle(os.Stdout, client.Info().Store, h, permits, since, bootSince); err == nil {
		return nil
	}
	// Without the handle, the lock cannot be released by anyone.
	return exitWith(exitOutputFailed, "the handle cannot be printed, and %s: %s",
		releaseUnprinted(client, h), rootCause(err))
}

// isClosedOutput reports whether a descriptor was closed when this program started, as by >&-. The Go runtime has
// opened /dev/null in its place by then, for reading and writing. A shell opens an output for writing alone.
func isClosedOutput(f *os.File) bool {
	opened, err1 := f.Stat()
	null, err2 := os.Stat(os.DevNull)
	return errors.Join(err1, err2) == nil && os.SameFile(opened, null) && isOpenForBoth(f)
}

// detachLease leaves the lock held without this process. If it is not certain that this worked, it releases the lock:
// the handle of a claim that may end with this process is worth nothing.
func detachLease(client *holdfast.Client, lease *holdfast.Lease) (holdfast.Handle, error) {
	h, err := lease.Detach()
	switch {
	case err == nil:
		return h, nil
	case errors.Is(err, holdfast.ErrLost):
		return h, exitWith(exitLost, "%s is lost: %s", quoteName(lease.Name()), lossText(err))
	case errors.Is(err, holdfast.ErrUncertain):
		return h, exitWith(exitUnavailable, "no handle could be made, and %s: %s",
			releaseUnprinted(client, h), errorText(err))
	}
	_ = lease.Release()
	return h, storeError(err)
}

// releaseUnprinted releases a lock whose handle could not be printed, and reports the outcome.
func releaseUnprinted(client *holdfast.Client, h holdfast.Handle) string {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := runWithTimeout(2*closeTimeout, func() error { return client.Release(ctx, h) })
	if err != nil && !errors.Is(err, holdfast.ErrLost) {
		return quoteName(h.Name) + " may stay held until its TTL has passed"
	}
	return quoteName(h.Name) + " was released"
}

func newRenew(storeURL *string) *cobra.Command {
	return &cobra.Command{
		Use:   "renew HANDLE",
		Short: "Renew a lock taken by acquire",
		Long: `renew extends the lock of a handle to its TTL from now. If HANDLE is -, the handle is read from standard input, where
others on the machine cannot see it.

It exits 76 if the lock is lost; a lost lock cannot be renewed. If an operator has broken the lock, renew releases it:
others may hold it as soon as renew has exited 76. So let no work run under the lock while renew runs, or do not renew,
and release the lock at the end of the work.`,
		Args: exactArgs("HANDLE"),
		RunE: func(_ *cobra.Command, args []string) error {
			handle, err := readHandle(args[0])
			if err != nil {
				return err
			}
			return withHandle(*storeURL, handle, renewHandle)
		},
	}
}

func newRelease(storeURL *string) *cobra.Command {
	return &cobra.Command{
		Use:   "release HANDLE",
		Short: "Release a lock taken by acquire",
		Long: `release releases the lock of a handle. If HANDLE is -, the handle is read from standard input, where others on the
machine cannot see it.

A second release of the same handle exits 0 and says on stderr that the lock was released before: a script may release
at its end and in a trap. So does the release of an empty handle, which is what acquire --skip-ok prints if the lock is
not acquired.

It exits 76 if the lock was lost before: if it has expired and others have held it since, if an operator has broken it,
or if the store cannot tell that it was released.`,
		Args: exactArgs("HANDLE"),
		RunE: func(_ *cobra.Command, args []string) error {
			handle, err := readHandle(args[0])
			if err != nil {
				return err
			}
			if handle == "" {
				printMessage("the handle is empty, so there is nothing to release")
				return nil
			}
			return withHandle(*storeURL, handle, releaseHandle)
		},
	}
}

// releaseHandle releases a lock. It renews it first, because only a renewal learns that an operator broke it.
func releaseHandle(ctx context.Context, client *holdfast.Client, h lockHandle) error {
	err := renewHandle(ctx, client, h)
	if !errors.Is(err, holdfast.ErrLost) {
		err = client.Release(ctx, h.Handle)
	}
	if code := lossCode(err); code != holdfast.LossGone && code != holdfast.LossTaken {
		return err
	}
	lock, inspectErr := client.Inspect(ctx, h.Name)
	switch {
	case inspectErr != nil:
		return err
	case h.hasTimeLeft() && (lock.Token == h.Token || client.Info().Tier == holdfast.TierFenceSafe):
		// It cannot have expired, and the store has not forgotten it.
		printMessage("%s was released before", quoteName(h.Name))
		return nil
	case lock.Token == h.Token:
		printMessage("%s is no longer held: it was released before, or has expired; nobody has held it since",
			quoteName(h.Name))
		return nil
	}
	return err
}

// renewHandle renews a lock. It releases one that an operator broke: its holder knows it then.
func renewHandle(ctx context.Context, client *holdfast.Client, h lockHandle) error {
	_, err := client.Renew(ctx, h.Handle)
	var loss *holdfast.LossError
	if errors.As(err, &loss) && loss.Cause == holdfast.LossBroken {
		if releaseErr := client.Release(ctx, h.Handle); releaseErr != nil && !errors.Is(releaseErr, holdfast.ErrLost) {
			printMessage("%s may stay held until its TTL has passed: %s", quoteName(h.Name), errorText(releaseErr))
		}
	}
	return err
}

// maxHandleSize is more than the length of any handle.
const maxHandleSize = 64 << 10

// readHandle returns the text of the argument HANDLE, from standard input if that is -.
func readHandle(arg string) (string, error) {
	if arg == "-" {
		in, err := io.ReadAll(io.LimitReader(os.Stdin, maxHandleSize))
		if err != nil {
			return "", usageError("the handle cannot be read: %s", rootCause(err))
		}
		arg = string(in)
	}
	return strings.TrimSpace(arg), nil
}

// withHandle runs f with a handle and a client of its store.
func withHandle(store, handle string, f func(context.Context, *holdfast.Client, lockHandle) error) error {
	h, err := parseHandle(handle)
	if err != nil {
		return usageError("that is not a handle; acquire prints one")
	}
	err = withClient(store, func(ctx context.Context, client *holdfast.Client) error {
		ctx, cancel := context.WithTimeout(ctx, handleTimeout)
		defer cancel()
		if here := client.Info().Store; h.store != here { // but one store has many names
			switch lock, err := client.Inspect(ctx, h.Name); {
			case err != nil:
				return storeError(err)
			case !slices.ContainsFunc(lock.Holders,
				func(c holdfast.ClaimInfo) bool { return c.Ref == h.Ref && c.Token == h.Token }):
				return usageError("the handle is for the store %s, and this is %s, %s, which does not have that claim; give "+
					"--store or HOLDFAST_STORE the URL that acquire had", printableText(h.store), printableText(here),
					usedStore.Load().origin())
			}
		}
		err := f(ctx, client, h)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, holdfast.ErrLost):
			return exitWith(exitLost, "%s is lost: %s", quoteName(h.Name), lossText(err))
		}
		return storeError(err)
	})
	var exit *exitError
	if errors.As(err, &exit) && errors.As(err, new(*openError)) {
		exit.err = fmt.Errorf("%w; the handle is for the store %s", exit.err, printableText(h.store))
	}
	return err
}

// handleTimeout bounds one request to the store.
const handleTimeout = 10 * time.Second
