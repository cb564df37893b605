package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// heldVariable lists the locks that are held around a command: entries separated by blanks, each
// STORE#NAME#REF#TOKEN#WEIGHT/LIMIT, with the store as "holdfast stores" shows it, and special characters as %XX. The
// entry of a key that once runs is STORE#LEDGER/KEY#ID#TOKEN#run. By it a run inside a run finds out that it would wait
// for itself. The ref or the id, and the token, identify the claim; the store is only a hint, since one store has many
// names.
const heldVariable = "HOLDFAST_HELD"

// permitVariable has the numbers of the permits of a lock with a limit, separated by commas. It is not set if they
// have none.
const permitVariable = "HOLDFAST_PERMIT"

// heldLock is one entry of heldVariable.
type heldLock struct {
	store, name, ref string
	token            int64
	weight, limit    int64 // 0 for a run, whose ref is its id
}

func (h heldLock) String() string {
	size := runEntrySize
	if h.limit > 0 {
		size = fmt.Sprintf("%d/%d", h.weight, h.limit)
	}
	return fmt.Sprintf("%s#%s#%s#%d#%s", escapeEntry(h.store), escapeEntry(h.name), escapeEntry(h.ref), h.token, size)
}

// runEntrySize ends the entry of a run. No entry of a lock ends so.
const runEntrySize = "run"

// escapeEntry escapes the characters that separate entries, and those that could confuse a shell or a terminal.
func escapeEntry(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte("#%\"'\\$`", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// unescapeEntry reverses escapeEntry. What is no escape stays as it is, since the variable may come from anybody.
func unescapeEntry(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// inheritedLocks are the locks of this name in this program's environment, and inheritedRuns the runs of such keys.
// Both skip what is not an entry.
func inheritedLocks(name string) []heldLock {
	return slices.DeleteFunc(inheritedEntries(), func(h heldLock) bool { return h.limit == 0 || h.name != name })
}

func inheritedRuns(isMeant func(key string) bool) []heldLock {
	return slices.DeleteFunc(inheritedEntries(), func(h heldLock) bool { return h.limit > 0 || !isMeant(h.name) })
}

// inheritedEntries reads the locks and runs that programs around this one hold, from the environment. It skips
// what it does not understand: a newer version may have written it.
func inheritedEntries() (all []heldLock) {
	for _, entry := range strings.Fields(os.Getenv(heldVariable)) {
		part := strings.Split(entry, "#")
		if len(part) != 5 {
			continue
		}
		h := heldLock{store: unescapeEntry(part[0]), name: unescapeEntry(part[1]), ref: unescapeEntry(part[2])}
		var err error
		if h.token, err = strconv.ParseInt(part[3], 10, 64); err != nil {
			continue
		}
		n, err := fmt.Sscanf(part[4], "%d/%d", &h.weight, &h.limit)
		if part[4] == runEntrySize || err == nil && n == 2 && h.limit > 0 {
			all = append(all, h)
		}
	}
	return all
}

// isNamed reports whether one of the entries has this name of the store.
func isNamed(entries []heldLock, store string) bool {
	return slices.ContainsFunc(entries, func(h heldLock) bool { return h.store == store })
}

// weightAndLimit are the weight of the request and the limit of the lock.
func (r *lockRequest) weightAndLimit() (weight, limit int64) {
	switch {
	case r.limit > 0:
		return r.permits, r.limit
	case r.shared:
		return 1, driver.RWLimit
	}
	return 1, 1
}

// checkSelfDeadlock refuses a request that could wait forever for a lock that is held around it. An entry counts only
// while its claim exists: an environment may be kept for longer than the lock. The name of the store is only a hint:
// if it is another one, a lock that cannot be read is no reason to refuse.
func (r *lockRequest) checkSelfDeadlock(ctx context.Context, client *holdfast.Client) error {
	for _, name := range r.names() {
		if err := r.checkSelfDeadlockOn(ctx, client, name); err != nil {
			return err
		}
	}
	return nil
}

// checkSelfDeadlockOn refuses a wait that could never end, because a program around this one holds the lock. It
// believes the store, not the environment: only a claim that is there now counts.
func (r *lockRequest) checkSelfDeadlockOn(ctx context.Context, client *holdfast.Client, name string) error {
	around := inheritedLocks(name)
	if len(around) == 0 {
		return nil
	}
	lock, err := client.Inspect(ctx, name)
	switch {
	case err != nil && isNamed(around, client.Info().Store):
		return err
	case err != nil:
		return nil
	}
	around = slices.DeleteFunc(around, func(h heldLock) bool {
		return !slices.ContainsFunc(lock.Holders, func(s holdfast.ClaimInfo) bool {
			return s.Ref == h.ref && s.Token == h.token
		})
	})
	weight, limit := r.weightAndLimit()
	within := weight
	for _, h := range around {
		within += h.weight
	}
	for _, h := range around {
		switch {
		case h.weight == h.limit || weight == limit || within > limit:
			return usageError("%s is already held by an enclosing holdfast run; this one would deadlock", quoteName(name))
		case !r.noWait && !r.waitLimit.limited:
			// Together they fit. But a claim that arrives between them waits for the outer one, and the inner one for
			// it.
			return usageError("%s is already held by an enclosing holdfast run; this one could deadlock; "+
				"give --wait or --no-wait", quoteName(name))
		}
	}
	return nil
}

// heldEntry is the entry of a lease. A plain request may have been granted as a writer: it takes the whole lock
// either way.
func (r *lockRequest) heldEntry(client *holdfast.Client, lease *holdfast.Lease) heldLock {
	weight, limit := r.weightAndLimit()
	return heldLock{store: client.Info().Store, name: lease.Name(), ref: lease.Ref(), token: lease.Token(),
		weight: weight, limit: limit}
}

// commandEnvironment is the environment of the command: the inherited one, with the variables of an outer run
// replaced by those of this lock.
func (r *lockRequest) commandEnvironment(inherited []string, client *holdfast.Client, lease *holdfast.Lease) []string {
	var entries, tokens []string
	for _, l := range r.leases(lease) {
		entries = append(entries, r.heldEntry(client, l).String())
		if r.group != nil {
			name := strings.ReplaceAll(escapeEntry(l.Name()), "=", "%3D")
			tokens = append(tokens, fmt.Sprintf("%s=%d", name, l.Token()))
		}
	}
	permits, _ := lease.Permits()
	return replaceVariables(inherited, [][2]string{
		{"HOLDFAST_LOCK", lease.Name()},
		{"HOLDFAST_TOKEN", strconv.FormatInt(lease.Token(), 10)},
		{"HOLDFAST_TOKENS", strings.Join(tokens, " ")},
		{"HOLDFAST_ID", lease.ID()},
		{permitVariable, driverutil.FormatPermits(permits)},
		{heldVariable, addHeldEntries(entries...)},
	})
}

// addHeldEntries is the value of heldVariable with more entries.
func addHeldEntries(entries ...string) string {
	return strings.Join(append(strings.Fields(os.Getenv(heldVariable)), entries...), " ")
}

// replaceVariables replaces variables, each a name and a value. Those without a value are only removed.
func replaceVariables(inherited []string, ours [][2]string) []string {
	var env []string
	for _, v := range inherited {
		name, _, _ := strings.Cut(v, "=")
		if !slices.ContainsFunc(ours, func(o [2]string) bool { return o[0] == name }) {
			env = append(env, v)
		}
	}
	for _, o := range ours {
		if o[1] != "" {
			env = append(env, o[0]+"="+o[1])
		}
	}
	return env
}
