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

// Inspect is one step that reads, and of a long line one for each part of it. Claims that are over are left out, though they stand
// until somebody's next step.
func (s *Store) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	if err := driver.CheckName(name, s.info); err != nil {
		return driver.Lock{}, err
	}
	p := s.patient(2 * time.Second)
	p.reads = true
	return s.inspect(name, func(keys, args []string) (rueidis.RedisMessage, error) {
		m, _, err := p.run(ctx, s.steps.show, keys, args)
		return m, err
	})
}

// inspect reads a lock by so many runs of the step that shows it as its line needs.
func (s *Store) inspect(name string, run func(keys, args []string) (rueidis.RedisMessage, error)) (driver.Lock, error) {
	keys := s.keys.all(name)
	var all view
	for from := "-inf"; from != ""; {
		m, err := run(keys[:s.steps.reach], []string{from})
		if err != nil {
			return driver.Lock{}, err
		}
		v, ok := readView(m)
		if !ok {
			return driver.Lock{}, corruptAnswer(name)
		}
		if from == "-inf" {
			all = v
		} else {
			all.line = append(all.line, v.line...)
			maps.Copy(all.claims, v.claims)
		}
		from = ""
		if len(v.line) >= showPart {
			from = "(" + strconv.FormatInt(v.last, 10)
		}
	}
	l, err := all.lock(name)
	if err != nil {
		return driver.Lock{}, fmt.Errorf("%w: the claims on %q: %w", driver.ErrCorrupt, name, err)
	}
	return l, nil
}

// showPart is how many of a line show.lua shows at a time.
const showPart = 256

// view is what show.lua gives.
type view struct {
	now, left              int64 // microseconds; milliseconds
	keyType, value, digest string
	id, flags, kind, mark  string
	owner, meta            string
	token, limit, ttl      int64
	claims                 map[string]string
	line                   []string
	last                   int64 // the score of the last of them
	ends                   map[string]int64
	holders                []string
}

func readView(m rueidis.RedisMessage) (v view, ok bool) {
	a, ok := array(m, 9)
	if !ok {
		return v, false
	}
	r, ok := array(a[5], 9)
	if !ok {
		return v, false
	}
	v = view{
		now: num(a[0]), keyType: str(a[1]), value: str(a[2]), left: num(a[3]), digest: str(a[4]),
		id: str(r[0]), token: num(r[1]), flags: str(r[2]), kind: str(r[3]), limit: num(r[4]), mark: str(r[5]),
		owner: str(r[6]), meta: str(r[7]), ttl: num(r[8]),
	}
	v.claims, _ = a[6].AsStrMap()
	if v.claims == nil {
		v.claims = map[string]string{}
	}
	v.holders, v.ends = scores(a[7])
	var came map[string]int64
	v.line, came = scores(a[8])
	if n := len(v.line); n > 0 {
		v.last = came[v.line[n-1]]
	}
	return v, true
}

// scores reads a sorted set, in its order.
func scores(m rueidis.RedisMessage) (members []string, score map[string]int64) {
	zs, _ := m.AsZScores()
	score = map[string]int64{}
	for _, z := range zs {
		members = append(members, z.Member)
		score[z.Member] = int64(z.Score)
	}
	return members, score
}

// kept is a claim as lib.lua keeps it.
type kept struct {
	Weight int64  `json:"w"`
	TTL    int64  `json:"ttl"` // ms
	Owner  string `json:"owner"`
	Meta   string `json:"meta"`
	Since  string `json:"since"` // microseconds
	Token  string `json:"token"`
	Flags  string `json:"flags"`
	State  string `json:"state"`
}

func (v *view) claim(id, suffix string) (driver.ClaimInfo, kept, error) {
	var k kept
	if err := json.Unmarshal([]byte(v.claims[id]), &k); err != nil {
		return driver.ClaimInfo{}, k, err
	}
	s := standing(id+suffix, k.Flags)
	s.Owner, s.Meta, s.Weight, s.TTL = k.Owner, k.Meta, k.Weight, millis(k.TTL)
	var since int64
	_, _ = fmt.Sscan(k.Since, &since)
	s.Since = micros(since)
	_, _ = fmt.Sscan(k.Token, &s.Token)
	return s, k, nil
}

// lock is how a lock stands, seen from outside.
func (v *view) lock(name string) (driver.Lock, error) {
	l := driver.Lock{Name: name, Token: v.token}
	kind, suffix := driver.Kind(v.kind), sharedRef
	if kind == driver.KindMutex {
		suffix = ""
	}
	switch {
	case v.keyType == "none":
	case v.digest != "":
		h := standing(foreignPrefix+v.digest, flagForeign)
		h.Owner, h.Weight, h.Remaining = foreignOwner(v.keyType, v.digest), 1, millis(max(v.left, 0))
		l.Holders = append(l.Holders, h)
	case v.value == v.id:
		kind, l.Limit, suffix = driver.KindMutex, 1, ""
		h := standing(v.id, v.flags)
		// Its token was drawn from the server's clock when it was granted, so it also says when.
		h.Owner, h.Meta, h.Weight, h.TTL, h.Since, h.Remaining = v.owner, v.meta, 1, millis(v.ttl), micros(v.token), millis(max(v.left, 0))
		if strings.Contains(v.flags, flagCalled) {
			l.Waiters = append(l.Waiters, h)
		} else {
			h.Token = v.token
			l.Holders = append(l.Holders, h)
		}
	default:
		for _, id := range v.holders {
			if v.ends[id] <= v.now || v.claims[id] == "" {
				continue
			}
			h, k, err := v.claim(id, suffix)
			if err != nil {
				return l, err
			}
			h.Remaining = time.Duration(v.ends[id]-v.now) * time.Microsecond
			if k.State == "called" {
				l.Waiters = append(l.Waiters, h)
			} else {
				l.Holders = append(l.Holders, h)
			}
		}
	}
	for _, id := range v.line {
		if v.claims[id] == "" {
			continue
		}
		w, k, err := v.claim(id, suffix)
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
	l.Revision = v.revision(&l)
	return l, nil
}

// revision differs whenever other claims stand.
func (v *view) revision(l *driver.Lock) string {
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
// lock that only foreign clients ever used has none: it is shown where a prefix or a template tells its key from others, and
// not where any key may be a lock's.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		seen := map[string]bool{}
		for name, err := range s.names(ctx, prefix) {
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

// names are the names of all locks that have a record, and of what foreign clients keep where ours stand, some of them more than
// once.
func (s *Store) names(ctx context.Context, prefix string) iter.Seq2[string, error] {
	match := s.steps.records(globEscape.Replace(s.keys.before + prefix))
	return func(yield func(string, error) bool) {
		for record, err := range s.scan(ctx, match) {
			if err != nil {
				yield("", err)
				return
			}
			if name, ok := s.steps.nameOf(s.keys, record); ok && strings.HasPrefix(name, prefix) && !yield(name, nil) {
				return
			}
		}
		if s.keys.before+s.keys.after == "" {
			return
		}
		for key, err := range s.scan(ctx, globEscape.Replace(s.keys.before+prefix)+"*"+globEscape.Replace(s.keys.after)) {
			if err != nil {
				yield("", err)
				return
			}
			if name, ok := s.keys.nameOf(key); ok && !ours(key) && strings.HasPrefix(name, prefix) && !yield(name, nil) {
				return
			}
		}
	}
}

// scan gives the keys that match, on all primaries.
func (s *Store) scan(ctx context.Context, match string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, node := range s.primaries(ctx) {
			for cursor, first := uint64(0), true; first || cursor != 0; first = false {
				var e rueidis.ScanEntry
				p := s.patient(2 * time.Second)
				p.reads = true
				for {
					if s.life.Err() != nil {
						yield("", driver.ErrClosed)
						return
					}
					var err error
					e, err = aside(ctx, s, func() (rueidis.ScanEntry, error) {
						return node.Do(ctx, node.B().Scan().Cursor(cursor).Match(match).Count(1000).Build()).AsScanEntry()
					})
					if err == nil {
						break
					}
					if err = p.again(ctx, err); err != nil {
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

// primaries are the nodes that together hold all keys.
func (s *Store) primaries(ctx context.Context) []rueidis.Client {
	if s.top != cluster {
		return []rueidis.Client{s.client}
	}
	var nodes []rueidis.Client
	for _, n := range s.client.Nodes() {
		role, err := aside(ctx, s, func() ([]rueidis.RedisMessage, error) { return n.Do(ctx, n.B().Role().Build()).ToArray() })
		if err != nil || len(role) == 0 || str(role[0]) == "master" {
			nodes = append(nodes, n) // one that does not answer fails the listing, instead of falling short in silence
		}
	}
	return nodes
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
