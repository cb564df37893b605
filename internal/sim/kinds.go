package sim

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// kind is a kind of store that does what some real ones do beside losing and delaying messages.
type kind string

// The kinds. Each world of [RunKind] has one.
const (
	undurable kind = "undurable" // what was written can be read before it lasts, and is gone after a fail-over
	stepped   kind = "stepped"   // the store's clock is set forward and back
	astray    kind = "astray"    // single replies tell a time that is far ahead
	stale     kind = "stale"     // some reads are old; an operator breaks claims
	crowded   kind = "crowded"   // more want to wait than may; an operator sends all away who wait for a lock
	silent    kind = "silent"    // the store is away for a while, or denies all; the TTLs are long
	broken    kind = "broken"    // an operator breaks claims
	lowered   kind = "lowered"   // the store keeps its sessions for a shorter time than it has promised
)

// kinds are those of the record engine, treeKinds those of the sequence engine.
var (
	kinds     = []kind{undurable, stepped, astray, stale, crowded, silent, broken}
	treeKinds = []kind{crowded, broken, lowered}
)

// prepare sets the world up for its kind.
func (w *World) prepare() {
	w.span, w.users = w.ttl, usersPerHost
	if w.kind == "" {
		return
	}
	w.calm = false
	switch w.kind {
	case undurable:
		w.base, w.notifies = &base{Table: w.memory.Table(), rows: map[string]record.Row{}}, false
	case crowded:
		w.calm = w.chance(0.3)
		w.users, w.turns, w.mostWaiting = 6, []string{"fair", "semaphore"}, 2+int(w.float()*17)
	case stepped:
		w.settings = []int{0}
	case silent:
		w.span, w.ttl = 3*time.Second, time.Hour
		w.turns = []string{"plain", "fair", "rw", "semaphore"}
	}
}

// trouble of a kind comes in place of the usual one, now and then.
func (w *World) special() {
	switch w.kind {
	case undurable:
		w.loseStandby()
	case stepped:
		w.setStore()
	case silent:
		w.fallSilent()
	case stale, broken, crowded:
		w.operate()
	case lowered:
		w.lower()
	}
}

// loseStandby has the store confirm no write for a while, since its standby is away. What is written is to be read all the same.
// Then the standby is back, or has become the store.
func (w *World) loseStandby() {
	w.store.Lock()
	kept, judged := w.base.lose(), w.judge.keep()
	w.store.Unlock()
	time.Sleep(w.upTo(w.span))
	w.store.Lock()
	defer w.store.Unlock()
	if w.chance(0.7) {
		w.base.fallBack(kept)
		w.judge.fallBack(judged)
	}
	w.base.regain()
}

// setStore sets the store's clock: a minute and more away from wherever it has been, for a client that has slept meanwhile cannot
// tell a step that is shorter than its sleep. And not again until all have heard of it: of a clock that came and went unheard
// nobody can know whose ends were written by it.
func (w *World) setStore() {
	if len(w.settings) > 1 && w.elapsed()-w.set < 25*time.Second {
		return
	}
	w.set = w.elapsed()
	var to int
	for to = 0; slices.Contains(w.settings, to); to = int(w.float()*101) - 50 {
	}
	w.settings = append(w.settings, to)
	by := time.Duration(to)*90*time.Second + w.upTo(30*time.Second)
	w.store.Lock()
	defer w.store.Unlock()
	w.offset = by
}

// lower has the store keep its sessions for half as long as it has promised. Their clients hear of it: from somewhat before on
// until then nothing is lost. A client that is cut off after the store has begun to count anew, and before it has heard, cannot
// know, and no rule helps.
func (w *World) lower() {
	w.gentle.Store(true)
	time.Sleep(2500 * time.Millisecond) // what was lost before has been asked for again
	w.tree.LowerSessionTTLs(w.ttl / 2)
	time.Sleep(w.ttl / 2)
	w.gentle.Store(false)
	if h := w.hosts["host1"]; w.chance(0.7) {
		h.setCut(true)
		time.Sleep(w.upTo(2 * w.span))
		h.setCut(false)
	}
}

// What a wait may take to end, when the store has not answered, or has denied, from some moment on: it looks every 5 s
// at least, bears with silence for 10 s, and gives a request 2 s. Of the answers that deny two in a row may be lost.
const (
	toldOfSilence = 25 * time.Second
	toldOfDenial  = 22 * time.Second
)

// fallSilent has the store answer nothing, or deny all, for longer than anybody who waits should bear it.
func (w *World) fallSilent() {
	bound := toldOfSilence
	denies := w.chance(0.5)
	if denies {
		bound = toldOfDenial
	}
	w.setAway(!denies, denies)
	from := w.elapsed()
	time.Sleep(bound)
	w.judge.told(from, bound)
	w.setAway(false, false)
	time.Sleep(5 * time.Second)
}

func (w *World) setAway(mute, denies bool) {
	w.store.Lock()
	defer w.store.Unlock()
	w.mute, w.denies = mute, denies
}

func (w *World) isMute() bool {
	w.store.Lock()
	defer w.store.Unlock()
	return w.mute
}

// operate has an operator break one claim by force, or all that wait for a lock.
func (w *World) operate() {
	name := w.turns[int(w.float()*float64(len(w.turns)))]
	if name == "all" {
		name = "plain"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	lock, err := w.operator.Inspect(ctx, name)
	if err != nil {
		w.complain("the operator cannot look at %s: %v", name, err)
		return
	}
	which := slices.Concat(lock.Holders, lock.Waiters)
	if w.kind == crowded {
		which = lock.Waiters
	} else if len(which) > 0 {
		k := int(w.float() * float64(len(which)))
		which = which[k : k+1]
	}
	for _, s := range which {
		mode := driver.BreakForce
		if w.kind == broken && w.chance(0.2) {
			mode = driver.BreakGraceful
		}
		w.judge.breaks(w.idOf(name, s))
		err := w.operator.Break(context.WithValue(ctx, actorKey{}, actor{breaks: true}), name, s.Ref, mode)
		if err != nil && !errors.Is(err, driver.ErrLost) && !errors.Is(err, driver.ErrUnsupported) {
			w.complain("the operator cannot break a claim on %s: %v", name, err)
		}
	}
}

// idOf is the id of a claim that the operator sees.
func (w *World) idOf(name string, s driver.ClaimInfo) string {
	if w.tree == nil {
		return s.Ref
	}
	for _, n := range w.tree.Nodes(name) {
		if key, _, _ := strings.Cut(s.Ref, "@"); key == n.Key {
			return n.ID
		}
	}
	return ""
}

// atTree carries out one request, and tells the judge which claims it has ended. Nobody but a claim's own client and the operator
// ends one: it is told by the host.
func (w *World) atTree(h *host, what string, do func() any) any {
	if what != "remove" && what != "break" && what != "withdraw" {
		return do()
	}
	w.store.Lock()
	defer w.store.Unlock()
	var before []sequence.Node
	for _, name := range names {
		before = append(before, w.tree.Nodes(name)...)
	}
	r := do()
	after := map[string]bool{}
	for _, name := range names {
		for _, n := range w.tree.Nodes(name) {
			after[n.Key] = true
		}
	}
	for _, n := range before {
		if !after[n.Key] {
			w.judge.removed(n, h, what)
		}
	}
	return r
}

// names are those of the locks of a world.
var names = []string{"plain", "fair", "rw", "semaphore", "leader", "timed", "twice", "fresh"}

// actor is on whose behalf a table is asked to write.
type actor struct {
	release string // the id of the claim that is given back
	breaks  bool   // an operator acts
}

type actorKey struct{}

func actorOf(ctx context.Context) actor {
	a, _ := ctx.Value(actorKey{}).(actor)
	return a
}

// base is a table whose rows can fall back to what they were.
type base struct {
	record.Table // what is not kept in rows

	mu    sync.Mutex
	rows  map[string]record.Row
	count int
	away  bool // the standby is
}

// errCut is what a client hears whose connection breaks while its commit waits for the standby.
var errCut = errors.New("the connection broke")

func (b *base) lose() map[string]record.Row {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = true
	return maps.Clone(b.rows)
}

func (b *base) fallBack(rows map[string]record.Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows = rows
}

func (b *base) regain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = false
}

func (b *base) Load(_ context.Context, name string) (record.Row, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.row(name), nil
}

func (b *base) row(name string) record.Row {
	row := b.rows[name]
	row.Name = name
	return row
}

func (b *base) Swap(_ context.Context, row record.Row) (record.Row, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rows[row.Name].Version != row.Version {
		return b.row(row.Name), record.ErrConflict
	}
	b.count++
	b.rows[row.Name] = record.Row{Name: row.Name, Version: strconv.Itoa(b.count), Data: row.Data}
	if b.away {
		return b.row(row.Name), errCut
	}
	return b.row(row.Name), nil
}

func (b *base) Delete(_ context.Context, row record.Row) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.rows[row.Name].Version {
	case "":
	case row.Version:
		delete(b.rows, row.Name)
	default:
		return record.ErrConflict
	}
	if b.away {
		return errCut
	}
	return nil
}

func (b *base) List(_ context.Context, prefix string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		b.mu.Lock()
		rows := maps.Clone(b.rows)
		b.mu.Unlock()
		for name, row := range rows {
			if strings.HasPrefix(name, prefix) && !yield(row, nil) {
				return
			}
		}
	}
}

// sight is how a row stood from some moment on.
type sight struct {
	row  record.Row
	from time.Duration
}

// keep remembers a row for those who read it late. Called with the store's mutex held, as older is.
func (w *World) keep(row record.Row) {
	if w.kind == stale {
		w.past[row.Name] = append(w.past[row.Name], sight{row, w.elapsed()})
	}
}

// older is the row as it is, or now and then as it was some time ago.
func (w *World) older(row record.Row) record.Row {
	if !w.faults() || !w.chance(0.2) {
		return row
	}
	at := w.elapsed() - w.upTo(w.ttl)
	for _, s := range slices.Backward(w.past[row.Name]) {
		if row = s.row; s.from <= at {
			return row
		}
	}
	return record.Row{Name: row.Name}
}

// excuses reports whether an error is one that stores of this kind may bring about.
func (w *World) excuses(err error) bool {
	switch w.kind {
	case crowded:
		return errors.Is(err, holdfast.ErrQueueFull) || errors.Is(err, holdfast.ErrLost)
	case silent:
		return errors.Is(err, holdfast.ErrDenied)
	case stale, broken:
		return errors.Is(err, holdfast.ErrLost)
	case undurable:
		return errors.Is(err, errCut)
	}
	return false
}
