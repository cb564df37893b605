package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// Inspect is one step that reads, and of a long line one for each part of it. Claims that are over are left out, though
// they stand until somebody's next step.
func (s *store) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	if err := driver.CheckName(name, s.info); err != nil {
		return driver.Lock{}, err
	}
	p := s.newRetryLoop(2 * time.Second)
	p.readOnly = true
	return s.inspectWith(name, func(keys, args []string) (rueidis.RedisMessage, error) {
		m, _, err := p.run(ctx, s.scripts.inspect, keys, args)
		return m, err
	})
}

// inspectWith reads a lock by so many runs of the step that shows it as its line needs.
func (s *store) inspectWith(name string,
	run func(keys, args []string) (rueidis.RedisMessage, error)) (driver.Lock, error) {
	keys := s.keys.allKeys(name)
	var all lockView
	for from := "-inf"; from != ""; {
		m, err := run(keys[:s.scripts.keyCount], []string{from})
		if err != nil {
			return driver.Lock{}, err
		}
		v, ok := readLockView(m)
		if !ok {
			return driver.Lock{}, corruptReply(name)
		}
		if from == "-inf" {
			all = v
		} else {
			all.queue = append(all.queue, v.queue...)
			maps.Copy(all.claims, v.claims)
		}
		from = ""
		if len(v.queue) >= inspectPage {
			from = "(" + strconv.FormatInt(v.last, 10)
		}
	}
	l, err := all.toLock(name)
	if err != nil {
		return driver.Lock{}, fmt.Errorf("%w: the claims on %q: %w", driver.ErrCorrupt, name, err)
	}
	return l, nil
}

// inspectPage is how many of a line show.lua shows at a time.
const inspectPage = 256

// lockView is what show.lua gives.
type lockView struct {
	now, remaining         int64 // microseconds; milliseconds
	keyType, value, digest string
	id, flags, kind, mark  string
	owner, meta            string
	token, limit, ttl      int64
	claims                 map[string]string
	queue                  []string
	last                   int64 // the score of the last of them
	expiries               map[string]int64
	holders                []string
}

func readLockView(m rueidis.RedisMessage) (v lockView, ok bool) {
	a, ok := readArray(m, 9)
	if !ok {
		return v, false
	}
	r, ok := readArray(a[5], 9)
	if !ok {
		return v, false
	}
	v = lockView{
		now: readNumber(a[0]), keyType: readString(a[1]), value: readString(a[2]), remaining: readNumber(a[3]), digest: readString(a[4]),
		id: readString(r[0]), token: readNumber(r[1]), flags: readString(r[2]), kind: readString(r[3]), limit: readNumber(r[4]), mark: readString(r[5]),
		owner: readString(r[6]), meta: readString(r[7]), ttl: readNumber(r[8]),
	}
	v.claims, _ = a[6].AsStrMap()
	if v.claims == nil {
		v.claims = map[string]string{}
	}
	v.holders, v.expiries = readScores(a[7])
	var came map[string]int64
	v.queue, came = readScores(a[8])
	if n := len(v.queue); n > 0 {
		v.last = came[v.queue[n-1]]
	}
	return v, true
}

// readScores reads a sorted set, in its order.
func readScores(m rueidis.RedisMessage) (members []string, score map[string]int64) {
	zs, _ := m.AsZScores()
	score = map[string]int64{}
	for _, z := range zs {
		members = append(members, z.Member)
		score[z.Member] = int64(z.Score)
	}
	return members, score
}

// storedClaim is a claim as lib.lua keeps it.
type storedClaim struct {
	Weight int64  `json:"w"`
	TTL    int64  `json:"ttl"` // ms
	Owner  string `json:"owner"`
	Meta   string `json:"meta"`
	Since  string `json:"since"` // microseconds
	Token  string `json:"token"`
	Flags  string `json:"flags"`
	State  string `json:"state"`
}

func (v *lockView) decodeClaim(id, suffix string) (driver.ClaimInfo, storedClaim, error) {
	var k storedClaim
	if err := json.Unmarshal([]byte(v.claims[id]), &k); err != nil {
		return driver.ClaimInfo{}, k, err
	}
	s := newClaimInfo(id+suffix, k.Flags)
	s.Owner, s.Meta, s.Weight, s.TTL = k.Owner, k.Meta, k.Weight, millis(k.TTL)
	var since int64
	_, _ = fmt.Sscan(k.Since, &since)
	s.Since = micros(since)
	_, _ = fmt.Sscan(k.Token, &s.Token)
	return s, k, nil
}

// toLock is how a lock stands, seen from outside.
func (v *lockView) toLock(name string) (driver.Lock, error) {
	l := driver.Lock{Name: name, Token: v.token}
	kind, suffix := driver.Kind(v.kind), sharedSuffix
	if kind == driver.KindMutex {
		suffix = ""
	}
	switch {
	case v.keyType == "none":
	case v.digest != "":
		h := newClaimInfo(foreignPrefix+v.digest, flagForeign)
		h.Owner, h.Weight, h.Remaining = foreignOwner(v.keyType, v.digest), 1, millis(max(v.remaining, 0))
		l.Holders = append(l.Holders, h)
	case v.value == v.id:
		kind, l.Limit, suffix = driver.KindMutex, 1, ""
		h := newClaimInfo(v.id, v.flags)
		// Its token was drawn from the server's clock when it was granted, so it also says when.
		h.Owner, h.Meta, h.Weight, h.TTL, h.Since, h.Remaining = v.owner, v.meta, 1, millis(v.ttl), micros(v.token), millis(max(v.remaining, 0))
		if strings.Contains(v.flags, flagPromoted) {
			l.Waiters = append(l.Waiters, h)
		} else {
			h.Token = v.token
			l.Holders = append(l.Holders, h)
		}
	default:
		for _, id := range v.holders {
			if v.expiries[id] <= v.now || v.claims[id] == "" {
				continue
			}
			h, k, err := v.decodeClaim(id, suffix)
			if err != nil {
				return l, err
			}
			h.Remaining = time.Duration(v.expiries[id]-v.now) * time.Microsecond
			if k.State == "called" {
				l.Waiters = append(l.Waiters, h)
			} else {
				l.Holders = append(l.Holders, h)
			}
		}
	}
	for _, id := range v.queue {
		if v.claims[id] == "" {
			continue
		}
		w, k, err := v.decodeClaim(id, suffix)
		if err != nil {
			return l, err
		}
		sign := k.Since
		if s := v.claims["?"+id]; s != "" {
			sign = s
		}
		var heard int64
		_, _ = fmt.Sscan(sign, &heard)
		if end := heard + k.TTL*1000; end >= v.now {
			w.Remaining = time.Duration(end-v.now) * time.Microsecond
			l.Waiters = append(l.Waiters, w)
		}
	}
	switch {
	case len(l.Holders)+len(l.Waiters) == 0:
	case kind == "" || v.digest != "" && len(l.Waiters) == 0:
		l.Kind, l.Limit = driver.KindMutex, 1
	case l.Limit == 0:
		l.Kind, l.Limit = kind, v.limit
	default:
		l.Kind = kind
	}
	l.Revision = v.buildRevision(&l)
	return l, nil
}

// buildRevision differs whenever other claims stand.
func (v *lockView) buildRevision(l *driver.Lock) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", v.token)
	for _, h := range l.Holders {
		fmt.Fprintf(&b, " %s%v%v%v", h.Ref, h.ReleaseRequested, h.Broken, h.Detached)
	}
	fmt.Fprintf(&b, " %d", len(l.Waiters))
	for _, w := range l.Waiters {
		fmt.Fprintf(&b, " %s", w.Ref)
	}
	return b.String()
}

// List walks through all keys of the server, or of each primary of a Cluster, and shows the locks that have a record. A
// lock that only foreign clients ever used has none: it is shown where a prefix or a template tells its key from
// others, and not where any key may be a lock's.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		seen := map[string]bool{}
		for name, err := range s.lockNames(ctx, prefix) {
			if err != nil {
				yield(driver.Lock{}, err)
				return
			}
			if seen[name] {
				continue
			}
			seen[name] = true
			l, err := s.Inspect(ctx, name)
			if err != nil {
				l = driver.Lock{Name: name}
			} else if len(l.Holders)+len(l.Waiters) == 0 {
				continue
			}
			if !yield(l, err) {
				return
			}
		}
	}
}

// lockNames are the names of all locks that have a record, and of what foreign clients keep where ours stand, some of
// them more than once.
func (s *store) lockNames(ctx context.Context, prefix string) iter.Seq2[string, error] {
	match := s.scripts.recordPattern(globEscape.Replace(s.keys.prefix + prefix))
	return func(yield func(string, error) bool) {
		for record, err := range s.scanKeys(ctx, match) {
			if err != nil {
				yield("", err)
				return
			}
			if name, ok := s.scripts.nameOf(s.keys, record); ok && strings.HasPrefix(name, prefix) &&
				!yield(name, nil) {
				return
			}
		}
		if s.keys.prefix+s.keys.suffix == "" {
			return
		}
		for key, err := range s.scanKeys(ctx, globEscape.Replace(s.keys.prefix+prefix)+"*"+
			globEscape.Replace(s.keys.suffix)) {
			if err != nil {
				yield("", err)
				return
			}
			if name, ok := s.keys.nameOfKey(key); ok && !isSideKey(key) && strings.HasPrefix(name, prefix) &&
				!yield(name, nil) {
				return
			}
		}
	}
}

// scanKeys gives the keys that match, on all primaries.
func (s *store) scanKeys(ctx context.Context, match string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, node := range s.primaryNodes(ctx) {
			for cursor, first := uint64(0), true; first || cursor != 0; first = false {
				var e rueidis.ScanEntry
				p := s.newRetryLoop(2 * time.Second)
				p.readOnly = true
				for {
					if s.life.Err() != nil {
						yield("", driver.ErrClosed)
						return
					}
					var err error
					e, err = runAsync(ctx, s, func() (rueidis.ScanEntry, error) {
						return node.Do(ctx, node.B().Scan().Cursor(cursor).Match(match).Count(1000).Build()).AsScanEntry()
					})
					if err == nil {
						break
					}
					if err = p.waitToRetry(ctx, err); err != nil {
						yield("", err)
						return
					}
				}
				cursor = e.Cursor
				for _, key := range e.Elements {
					if !yield(key, nil) {
						return
					}
				}
			}
		}
	}
}

// primaryNodes are the nodes that together hold all keys.
func (s *store) primaryNodes(ctx context.Context) []rueidis.Client {
	if s.topology != cluster {
		return []rueidis.Client{s.client}
	}
	var nodes []rueidis.Client
	for _, n := range s.client.Nodes() {
		role, err := runAsync(ctx, s, func() ([]rueidis.RedisMessage, error) {
			return n.Do(ctx,
				n.B().Role().Build()).ToArray()
		})
		if err != nil || len(role) == 0 || readString(role[0]) == "master" {
			nodes = append(nodes, n) // one that does not answer fails the listing, instead of falling short in silence
		}
	}
	return nodes
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
