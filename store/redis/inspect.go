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

// Inspect runs one script that reads; a long queue takes one for each page of it. Expired claims are left out, although
// they are in the store until the next script of a client removes them.
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

// inspectWith reads a lock by as many runs of inspect.lua as its queue has pages. The pages are read one after the
// other, so the queue may change in between; everything else is from the first run.
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

// inspectPage is the length of the page of the queue that one run of inspect.lua returns. It is PAGE in that script. It
// bounds how long the script keeps the server busy.
const inspectPage = 256

// lockView is the reply of inspect.lua.
type lockView struct {
	now, remaining         int64 // the server's time in microseconds; the TTL of the lock's key in milliseconds
	keyType, value, digest string
	id, flags, kind        string
	owner, meta            string
	token, limit, ttl      int64
	claims                 map[string]string
	queue                  []string
	last                   int64 // the score of the last claim in queue
	expiries               map[string]int64
	holders                []string
}

// readLockView reads the reply of inspect.lua. It reports false if it is malformed.
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
		id: readString(r[0]), token: readNumber(r[1]), flags: readString(r[2]), kind: readString(r[3]), limit: readNumber(r[4]),
		owner: readString(r[6]), meta: readString(r[7]), ttl: readNumber(r[8]),
	}
	v.claims, _ = a[6].AsStrMap()
	if v.claims == nil {
		v.claims = map[string]string{}
	}
	v.holders, v.expiries = readScores(a[7])
	var scores map[string]int64
	v.queue, scores = readScores(a[8])
	if n := len(v.queue); n > 0 {
		v.last = scores[v.queue[n-1]]
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

// storedClaim is a claim in the form in which shared/queue.lua stores it. Numbers that need all their digits are text,
// since the JSON encoder of Redis's Lua rounds them to 14.
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

// decodeClaim describes a claim that is stored as JSON: a waiting one, or a holder of a shared lock. suffix ends its
// ref.
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

// toLock describes the lock as driver.Lock. It decides in the same way as settle in shared/queue.lua who holds the
// lock, but changes nothing.
func (v *lockView) toLock(name string) (driver.Lock, error) {
	l := driver.Lock{Name: name, Token: v.token}
	kind, suffix := driver.Kind(v.kind), sharedSuffix
	if kind == driver.KindMutex {
		suffix = ""
	}
	switch {
	case v.keyType == "none": // nobody holds it
	case v.digest != "": // the value is neither the id nor the mark of the record
		l.Holders = append(l.Holders, v.foreignHolder())
	case v.value == v.id: // a mutex
		kind, l.Limit, suffix = driver.KindMutex, 1, ""
		v.addMutexClaim(&l)
	default: // the value is the mark of a shared lock
		if err := v.addSharedClaims(&l, suffix); err != nil {
			return l, err
		}
	}
	if err := v.addQueue(&l, suffix); err != nil {
		return l, err
	}
	switch {
	case len(l.Holders)+len(l.Waiters) == 0:
	// A foreign holder counts as a mutex's, unless claims wait behind it, which have given the lock their kind.
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

// foreignHolder describes the client that holds the lock in a way that is not ours.
func (v *lockView) foreignHolder() driver.ClaimInfo {
	h := newClaimInfo(foreignPrefix+v.digest, flagForeign)
	h.Owner, h.Weight, h.Remaining = foreignOwner(v.keyType, v.digest), 1, millis(max(v.remaining, 0))
	return h
}

// addMutexClaim adds the claim in the record of a mutex: its holder, or a promoted claim, which is still a waiter.
func (v *lockView) addMutexClaim(l *driver.Lock) {
	h := newClaimInfo(v.id, v.flags)
	h.Owner, h.Meta, h.Weight, h.TTL, h.Remaining = v.owner, v.meta, 1, millis(v.ttl), millis(max(v.remaining, 0))
	// A token is the server's time of the grant, unless the clock was set back. So Since needs no field of its own.
	h.Since = micros(v.token)
	if strings.Contains(v.flags, flagPromoted) {
		l.Waiters = append(l.Waiters, h)
		return
	}
	h.Token = v.token
	l.Holders = append(l.Holders, h)
}

// addSharedClaims adds the claims that hold a shared lock, or were promoted, and have not expired. Some may have
// expired by the server's clock without any script since.
func (v *lockView) addSharedClaims(l *driver.Lock, suffix string) error {
	for _, id := range v.holders {
		if v.expiries[id] <= v.now || v.claims[id] == "" {
			continue
		}
		h, k, err := v.decodeClaim(id, suffix)
		if err != nil {
			return err
		}
		h.Remaining = time.Duration(v.expiries[id]-v.now) * time.Microsecond
		if k.State == "promoted" {
			l.Waiters = append(l.Waiters, h)
		} else {
			l.Holders = append(l.Holders, h)
		}
	}
	return nil
}

// addQueue adds the claims in the queue that have sent a request within their TTL. Others are dead, and the next script
// that meets them removes them.
func (v *lockView) addQueue(l *driver.Lock, suffix string) error {
	for _, id := range v.queue {
		if v.claims[id] == "" {
			continue
		}
		w, k, err := v.decodeClaim(id, suffix)
		if err != nil {
			return err
		}
		sign := k.Since // the time of the claim's last request
		if s := v.claims["?"+id]; s != "" {
			sign = s
		}
		var lastSeen int64
		_, _ = fmt.Sscan(sign, &lastSeen)
		if end := lastSeen + k.TTL*1000; end >= v.now {
			w.Remaining = time.Duration(end-v.now) * time.Microsecond
			l.Waiters = append(l.Waiters, w)
		}
	}
	return nil
}

// buildRevision returns a text that differs whenever the holders, the waiters or their flags differ. Renewals do not
// change it.
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

// List scans all keys of the server, or of each primary of a Cluster, and returns the locks that have a record. A lock
// that only foreign clients ever used has none. It is listed if a prefix or a template tells its key from other keys,
// but not if any key may be a lock's.
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
			// SCAN may return a key twice, and a lock may be found by its record and by its own key.
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

// lockNames returns the names of all locks that have a record, and of foreign keys that fit the template. Some names
// come more than once.
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
		// Without a prefix or a template any key of the database would count as a lock.
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

// scanKeys returns the keys that match, on all primaries. SCAN reads a part of the keys per request, so that the server
// is never busy for long. It returns every key that exists during the whole scan, some more than once (redis.io:
// "SCAN").
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

// primaryNodes returns the nodes that together have all keys. Replicas have copies, which may be old.
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
			// A node that does not answer is kept, so that the listing fails instead of silently missing its locks.
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// globEscape escapes the characters that have a meaning in the patterns of SCAN.
var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
