package redis

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Inspect asks all servers, and returns the holder that a majority of them has. A claim on a minority is an attempt
// that has failed or is under way.
func (r *redlockStore) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	if err := driver.CheckName(name, r.info); err != nil {
		return driver.Lock{}, err
	}
	keys := r.servers[0].keys.allKeys(name)
	var locks []serverLock
	_, _, err := r.retryUntilMajority(ctx, 2*time.Second, func() (replyCounts, error) {
		locks = nil
		t := replyCounts{}
		err := r.askServers(ctx, breakTTL, serverScript{script: plainScripts.inspect, keys: keys[:]},
			func(v serverReply) bool {
				if v.err != nil {
					t.err = v.err
					return false
				}
				if view, ok := readLockView(v.reply); ok {
					if l, err := view.toLock(name); err == nil {
						locks = append(locks, serverLock{l, strings.Contains(view.flags, agreedFlag)})
						t.replies++
					}
				}
				return false
			})
		return t, err
	})
	if err != nil {
		return driver.Lock{}, err
	}
	return r.mergeLocks(name, locks), nil
}

// serverLock is a lock as one server describes it. agreed means that a majority has agreed on the token of its holder.
type serverLock struct {
	driver.Lock
	agreed bool
}

// mergeLocks makes one lock of those that the servers describe. A flag counts if any server has it. A token is shown
// only if it was agreed on: before that, each server has another one.
func (r *redlockStore) mergeLocks(name string, locks []serverLock) driver.Lock {
	merged := driver.Lock{Name: name}
	count, of := map[string]int{}, map[string]driver.ClaimInfo{}
	tokens := map[string]int64{}
	for _, l := range locks {
		merged.Token = max(merged.Token, l.Token)
		for _, h := range l.Holders {
			count[h.Ref]++
			if was, ok := of[h.Ref]; ok {
				h.ReleaseRequested, h.Broken, h.Detached = h.ReleaseRequested || was.ReleaseRequested, h.Broken ||
					was.Broken, h.Detached || was.Detached
			}
			if l.agreed {
				tokens[h.Ref] = h.Token
			}
			of[h.Ref] = h
		}
	}
	for ref, n := range count {
		if h := of[ref]; n >= r.majority {
			h.Token = tokens[ref]
			merged.Holders = append(merged.Holders, h)
			merged.Kind, merged.Limit = driver.KindMutex, 1
			if h.Token > 0 {
				merged.Token = h.Token
			}
		}
	}
	merged.Revision = strconv.FormatInt(merged.Token, 10)
	for _, h := range merged.Holders {
		merged.Revision += fmt.Sprintf(" %s%v%v%v", h.Ref, h.ReleaseRequested, h.Broken, h.Detached)
	}
	return merged
}

// List scans all keys of all servers, and returns the locks that are held on a majority.
func (r *redlockStore) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		seen := map[string]bool{}
		failed := 0
		for _, s := range r.servers {
			for name, err := range s.lockNames(ctx, prefix) {
				if err != nil {
					if failed++; failed > len(r.servers)-r.majority || ctx.Err() != nil || r.life.Err() != nil {
						yield(driver.Lock{}, err)
						return
					}
					break // the others know every lock that a majority holds
				}
				if seen[name] {
					continue
				}
				seen[name] = true
				l, err := r.Inspect(ctx, name)
				if err != nil {
					l = driver.Lock{Name: name}
				} else if len(l.Holders) == 0 {
					continue
				}
				if !yield(l, err) {
					return
				}
			}
		}
	}
}
