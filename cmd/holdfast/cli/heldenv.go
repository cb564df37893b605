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
)

// heldVariable lists the locks that are held around a command: entries separated by blanks, each
// STORE#NAME#TOKEN#WEIGHT/LIMIT, with the store as "holdfast stores" shows it, and special characters as %XX. By it a
// run inside a run finds out that it would wait for itself. Stores are compared by name: one store under two names
// (localhost and 127.0.0.1) is not recognized. The entry of a key that once runs is STORE#LEDGER/KEY#TOKEN#run.
const heldVariable = "HOLDFAST_HELD"

// heldLock is one entry of heldVariable.
type heldLock struct {
	store, name   string
	token         int64
	weight, limit int64
}

func (h heldLock) String() string {
	return fmt.Sprintf("%s#%s#%d#%d/%d", escapeEntry(h.store), escapeEntry(h.name), h.token, h.weight, h.limit)
}

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

// inheritedLocks are the entries in this program's environment. It skips what is not an entry.
func inheritedLocks() []heldLock {
	var all []heldLock
	for _, entry := range strings.Fields(os.Getenv(heldVariable)) {
		part := strings.Split(entry, "#")
		if len(part) != 4 {
			continue
		}
		h := heldLock{store: unescapeEntry(part[0]), name: unescapeEntry(part[1])}
		token, err := strconv.ParseInt(part[2], 10, 64)
		n, scanErr := fmt.Sscanf(part[3], "%d/%d", &h.weight, &h.limit)
		if h.token = token; err == nil && scanErr == nil && n == 2 {
			all = append(all, h)
		}
	}
	return all
}

// inheritedRun is the token of the run of a key that is in this program's environment, or 0. key has the ledger's name.
func inheritedRun(store, key string) (token int64) {
	for _, entry := range strings.Fields(os.Getenv(heldVariable)) {
		text, ok := strings.CutPrefix(entry, runEntryPrefix(store, key))
		number, isRun := strings.CutSuffix(text, runEntrySuffix)
		if n, err := strconv.ParseInt(number, 10, 64); ok && isRun && err == nil {
			token = n
		}
	}
	return token
}

// runEntrySuffix ends the entry of a run. No entry of a lock ends so.
const runEntrySuffix = "#run"

func runEntryPrefix(store, key string) string {
	return escapeEntry(store) + "#" + escapeEntry(key) + "#"
}

// runEntry is the entry of a run of a key.
func runEntry(store, key string, token int64) string {
	return runEntryPrefix(store, key) + strconv.FormatInt(token, 10) + runEntrySuffix
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
// while its claim exists: an environment may be kept for longer than the lock.
func (r *lockRequest) checkSelfDeadlock(ctx context.Context, client *holdfast.Client) error {
	around := slices.DeleteFunc(inheritedLocks(), func(h heldLock) bool {
		return h.store != client.Info().Store || h.name != r.name
	})
	if len(around) == 0 {
		return nil
	}
	lock, err := client.Inspect(ctx, r.name)
	if err != nil {
		return err
	}
	around = slices.DeleteFunc(around, func(h heldLock) bool {
		return !slices.ContainsFunc(lock.Holders, func(s holdfast.ClaimInfo) bool { return s.Token == h.token })
	})
	weight, limit := r.weightAndLimit()
	within := weight
	for _, h := range around {
		within += h.weight
	}
	for _, h := range around {
		switch {
		case h.weight == h.limit || weight == limit || within > limit:
			return usageError("%s is already held by an enclosing holdfast run; this one would deadlock", quoteName(r.name))
		case !r.noWait && !r.waitLimit.limited:
			// Together they fit. But a claim that arrives between them waits for the outer one, and the inner one for it.
			return usageError("%s is already held by an enclosing holdfast run; this one could deadlock; "+
				"give --wait or --no-wait", quoteName(r.name))
		}
	}
	return nil
}

// heldEntry is the entry of a lease. A plain request may have been granted as a writer: it takes the whole lock
// either way.
func (r *lockRequest) heldEntry(client *holdfast.Client, lease *holdfast.Lease) heldLock {
	weight, limit := r.weightAndLimit()
	return heldLock{store: client.Info().Store, name: lease.Name(), token: lease.Token(), weight: weight, limit: limit}
}

// commandEnvironment is the environment of the command: the inherited one, with the variables of an outer run
// replaced by those of this lock.
func (r *lockRequest) commandEnvironment(inherited []string, client *holdfast.Client, lease *holdfast.Lease) []string {
	return replaceVariables(inherited, [][2]string{
		{"HOLDFAST_LOCK", lease.Name()},
		{"HOLDFAST_TOKEN", strconv.FormatInt(lease.Token(), 10)},
		{"HOLDFAST_ID", lease.ID()},
		{heldVariable, addHeldEntry(r.heldEntry(client, lease).String())},
	})
}

// addHeldEntry is the value of heldVariable with one more entry.
func addHeldEntry(entry string) string {
	return strings.Join(append(strings.Fields(os.Getenv(heldVariable)), entry), " ")
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
