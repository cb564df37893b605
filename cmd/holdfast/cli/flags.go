package cli

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
)

// lockFlags say which lock is meant and how it is acquired. run, hold, acquire and explain have them.
type lockFlags struct {
	store        *string
	ttl          time.Duration
	wait         waitLimit
	noWait       bool
	fair         bool
	newestOnly   bool
	shared       bool
	limit        int64
	permits      int64
	minHold      time.Duration
	maxHold      time.Duration
	conflictCode int
	skipOK       bool
	labels       claimLabels
}

// addFlags adds the flags that say which lock is taken and how, the same for run, hold, acquire and explain.
func (f *lockFlags) addFlags(c *cobra.Command) {
	flags := c.Flags()
	flags.DurationVar(&f.ttl, "ttl", holdfast.DefaultTTL,
		"how long the lock stays held if this program stops renewing it, 1s to 24h")
	flags.Var(&f.wait, "wait", "how long to wait for the lock: a `duration` such as 10m, or forever")
	flags.BoolVarP(&f.noWait, "no-wait", "n", false, "do not wait")
	flags.BoolVar(&f.fair, "fair", false,
		"queue in arrival order with other --fair callers (always on for --shared and --limit)")
	flags.BoolVar(&f.newestOnly, "newest-only", false,
		"like --fair, but give up (exit 81) when a later --newest-only caller waits")
	flags.BoolVarP(&f.shared, "shared", "s", false, "share NAME with other --shared runs")
	flags.Int64Var(&f.limit, "limit", 0, "let up to `N` hold NAME at once")
	flags.Int64Var(&f.permits, "permits", 1, "with --limit: count as `K` of them")
	flags.IntVarP(&f.conflictCode, "conflict-exit-code", "E", exitNotAcquired,
		"exit `CODE`, 0 to 255, if the lock is not acquired")
	flags.BoolVar(&f.skipOK, "skip-ok", false, "exit 0 if the lock is not acquired, for jobs that may be skipped")
	f.labels.addFlags(c)
}

// addHoldFlags adds the flags that make sense only while a process holds the lock, so acquire does not have them.
func (f *lockFlags) addHoldFlags(c *cobra.Command) {
	c.Flags().DurationVar(&f.minHold, "min-hold", 0,
		"keep the lock at least this long, even if the command finishes sooner")
	c.Flags().DurationVar(&f.maxHold, "max-hold", 0, "hold the lock at most this long")
}

// nonEmptyString is the value of a flag that may be left out but must not be empty: an empty value is probably a
// variable of a script that was not set.
type nonEmptyString struct{ target *string }

func (f nonEmptyString) Type() string   { return "string" }
func (f nonEmptyString) String() string { return "" }

func (f nonEmptyString) Set(s string) error {
	if s == "" {
		return errors.New("give a value, or leave the flag out")
	}
	*f.target = s
	return nil
}

// waitLimit is the value of --wait. The zero value is forever.
type waitLimit struct {
	limited bool
	limit   time.Duration
}

func (p *waitLimit) Type() string { return "duration" }

func (p *waitLimit) String() string {
	if !p.limited {
		return "forever"
	}
	return p.limit.String()
}

// Set parses a duration, or forever. The errors of time.ParseDuration are kept where they name the unit that is
// missing.
func (p *waitLimit) Set(s string) error {
	if s == "forever" {
		*p = waitLimit{}
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil && badDuration.MatchString(strings.TrimPrefix(err.Error(), "time: ")) {
		return err
	}
	if err != nil || d < 0 {
		return errors.New("give a duration with its unit, such as 10s, or forever")
	}
	*p = waitLimit{limited: true, limit: d}
	return nil
}

// newRequest checks the flags and makes a request of them. note is shown next to the owner, unless
// --note is given.
func (f *lockFlags) newRequest(c *cobra.Command, name, note string) (*lockRequest, error) {
	if err := applyLockConfig(c, name); err != nil {
		return nil, err
	}
	changed := c.Flags().Changed
	switch {
	case f.noWait && changed("wait"):
		return nil, usageError("--no-wait and --wait exclude each other")
	case f.shared && changed("limit"):
		return nil, usageError("--shared and --limit exclude each other")
	case f.newestOnly && f.shared:
		return nil, usageError("--newest-only and --shared exclude each other")
	case changed("permits") && !changed("limit"):
		return nil, usageError("--permits needs --limit")
	case changed("limit") && f.limit < 1:
		return nil, usageError("--limit must be 1 or more")
	case changed("limit") && (f.permits < 1 || f.permits > f.limit):
		return nil, usageError("--permits must be 1 to the limit of %d", f.limit)
	case f.ttl < time.Second || f.ttl > 24*time.Hour:
		return nil, usageError("--ttl must be 1s to 24h, not %v", f.ttl)
	case f.minHold < 0 || f.maxHold < 0:
		return nil, usageError("--min-hold and --max-hold cannot be negative")
	case changed("max-hold") && f.maxHold < max(time.Second, f.minHold):
		return nil, usageError("--max-hold must be at least %v", max(time.Second, f.minHold))
	case f.conflictCode < 0 || f.conflictCode > 255:
		return nil, usageError("-E must be 0 to 255")
	case f.skipOK && changed("conflict-exit-code"):
		return nil, usageError("--skip-ok and -E exclude each other")
	}
	return &lockRequest{
		name: name, kind: f.lockKind(), shared: f.shared, limit: f.limit, permits: f.permits,
		notAcquiredCode: f.notAcquiredCode(), skipOK: f.skipOK,
		opts: holdfast.LockOptions{TTL: f.ttl, Fair: f.fair, NewestOnly: f.newestOnly, Meta: cmp.Or(f.labels.note, note), MinHold: f.minHold,
			MaxHold: f.maxHold},
		noWait: f.noWait || f.wait.limited && f.wait.limit == 0, waitLimit: f.wait, labels: f.labels,
	}, nil
}

// lockKind is the kind of lock that the flags ask for. A plain run is a mutex, until it meets shared runs: see
// acquire.Request.
func (f *lockFlags) lockKind() holdfast.Kind {
	switch {
	case f.limit > 0:
		return holdfast.KindSemaphore
	case f.shared:
		return holdfast.KindRW
	}
	return holdfast.KindMutex
}

// notAcquiredCode is the exit code if the lock is not acquired.
func (f *lockFlags) notAcquiredCode() int {
	if f.skipOK {
		return 0
	}
	return f.conflictCode
}
