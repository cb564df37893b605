package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// heldVariable lists the locks that are held around a command: entries separated by blanks, each
// STORE#NAME#TOKEN#WEIGHT/LIMIT, with the store as "holdfast stores" shows it, and special characters as %XX. By it a
// run inside a run finds out that it would wait for itself. Stores are compared by name: one store under two names
// (localhost and 127.0.0.1) is not recognized.
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
	weight, limit := r.weightAndLimit()
	within := weight
	var around []heldLock
	for _, h := range inheritedLocks() {
		if h.store == client.Info().Store && h.name == r.name {
			around = append(around, h)
			within += h.weight
		}
	}
	if len(around) == 0 {
		return nil
	}
	lock, err := client.Inspect(ctx, r.name)
	if err != nil {
		return err
	}
	for _, s := range lock.Holders {
		for _, h := range around {
			if h.token != s.Token {
				continue
			}
			switch {
			case h.weight == h.limit || weight == limit || within > limit:
				return usageError("%s is already held by an enclosing holdfast run; this one would deadlock",
					quoteName(r.name))
			case !r.noWait && !r.waitLimit.limited:
				// Together they fit. But a claim that arrives between them waits for the outer one, and the inner one
				// for it.
				return usageError("%s is already held by an enclosing holdfast run; this one could deadlock; "+
					"give --wait or --no-wait", quoteName(r.name))
			}
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
	entries := strings.Fields(os.Getenv(heldVariable))
	ours := [][2]string{
		{"HOLDFAST_LOCK", lease.Name()},
		{"HOLDFAST_TOKEN", strconv.FormatInt(lease.Token(), 10)},
		{"HOLDFAST_ID", lease.ID()},
		{heldVariable, strings.Join(append(entries, r.heldEntry(client, lease).String()), " ")},
	}
	var env []string
	for _, v := range inherited {
		name, _, _ := strings.Cut(v, "=")
		if name != ours[0][0] && name != ours[1][0] && name != ours[2][0] && name != ours[3][0] {
			env = append(env, v)
		}
	}
	for _, o := range ours {
		env = append(env, o[0]+"="+o[1])
	}
	return env
}
