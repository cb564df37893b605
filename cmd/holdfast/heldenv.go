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

// heldVariable lists what is held around a command: entries with blanks between them, each STORE#NAME#TOKEN#WEIGHT/LIMIT,
// with the store as "holdfast stores" shows it, and odd characters as %XX. It is how a run within a run finds out that it
// would wait for itself. Stores are the same by their names only: whoever calls one by two (localhost and 127.0.0.1) is not warned.
const heldVariable = "HOLDFAST_HELD"

// heldLock is one entry.
type heldLock struct {
	store, name   string
	token         int64
	weight, limit int64
}

func (h heldLock) String() string {
	return fmt.Sprintf("%s#%s#%d#%d/%d", escapeEntry(h.store), escapeEntry(h.name), h.token, h.weight, h.limit)
}

// escapeEntry keeps what separates entries, and all that could confuse a shell or a terminal, out of them.
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

// inheritedLocks is what the environment says. What is not an entry is somebody else's affair.
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

// weightAndLimit is what the request would weigh, and of how much.
func (r *lockRequest) weightAndLimit() (weight, limit int64) {
	switch {
	case r.limit > 0:
		return r.permits, r.limit
	case r.shared:
		return 1, driver.RWLimit
	}
	return 1, 1
}

// checkSelfDeadlock refuses a request that could wait for what is held around it, and so for ever. An entry counts only while its
// claim stands: an environment may have been kept for longer than the lock.
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
				return usageError("%s is held already around this, which would wait for itself", quoteName(r.name))
			case !r.noWait && !r.waitLimit.limited:
				// Together they fit. But whoever comes between them waits for the outer one, and the inner one for that.
				return usageError("%s is held already around this, which could wait for itself for ever; give --wait or --no-wait", quoteName(r.name))
			}
		}
	}
	return nil
}

// heldEntry is a lease as an entry. A plain request may have been granted as a writer: it is all of the lock either way.
func (r *lockRequest) heldEntry(client *holdfast.Client, lease *holdfast.Lease) heldLock {
	weight, limit := r.weightAndLimit()
	return heldLock{store: client.Info().Store, name: lease.Name(), token: lease.Token(), weight: weight, limit: limit}
}

// commandEnvironment is what the command gets: ours, with what it should know of its lock in the place of what an outer run said
// of another.
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
