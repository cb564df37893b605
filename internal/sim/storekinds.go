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

// prepareKind sets the world up for its kind.
func (w *simulation) prepareKind() {
	w.timeScale, w.usersPerHost = w.ttl, defaultUsersPerHost
	if w.kind == "" {
		return
	}
	w.faultless = false
	switch w.kind {
	case undurable:
		w.revertible, w.notifies = &revertibleTable{Table: w.memory.Table(), rows: map[string]record.Row{}}, false
	case crowded:
		w.faultless = w.chance(0.3)
		w.usersPerHost, w.turns, w.maxWaiters = 6, []string{"fair", "semaphore"}, 2+int(w.randomFloat()*17)
	case stepped:
		w.clockOffsets = []int{0}
	case silent:
		w.timeScale, w.ttl = 3*time.Second, time.Hour
		w.turns = []string{"plain", "fair", "rw", "semaphore"}
	}
}

// trouble of a kind comes in place of the usual one, now and then.
func (w *simulation) causeKindFault() {
	switch w.kind {
	case undurable:
		w.loseStandby()
	case stepped:
		w.setStoreClock()
	case silent:
		w.silenceStore()
	case stale, broken, crowded:
		w.breakClaims()
	case lowered:
		w.lowerSessionTimeout()
	}
}

// loseStandby has the store confirm no write for a while, since its standby is away. What is written is to be read all the same.
// Then the standby is back, or has become the store.
func (w *simulation) loseStandby() {
	w.storeMu.Lock()
	kept, judged := w.revertible.loseStandby(), w.checker.saveState()
	w.storeMu.Unlock()
	time.Sleep(w.upTo(w.timeScale))
	w.storeMu.Lock()
	defer w.storeMu.Unlock()
	if w.chance(0.7) {
		w.revertible.revertTo(kept)
		w.checker.revertState(judged)
	}
	w.revertible.regainStandby()
}

// setStoreClock sets the store's clock: a minute and more away from wherever it has been, for a client that has slept meanwhile cannot
// tell a step that is shorter than its sleep. And not again until all have heard of it: of a clock that came and went unheard
// nobody can know whose ends were written by it.
func (w *simulation) setStoreClock() {
	if len(w.clockOffsets) > 1 && w.elapsed()-w.clockSetAt < 25*time.Second {
		return
	}
	w.clockSetAt = w.elapsed()
	var to int
	for to = 0; slices.Contains(w.clockOffsets, to); to = int(w.randomFloat()*101) - 50 {
	}
	w.clockOffsets = append(w.clockOffsets, to)
	by := time.Duration(to)*90*time.Second + w.upTo(30*time.Second)
	w.storeMu.Lock()
	defer w.storeMu.Unlock()
	w.storeOffset = by
}

// lowerSessionTimeout has the store keep its sessions for half as long as it has promised. Their clients hear of it: from somewhat before on
// until then nothing is lost. A client that is cut off after the store has begun to count anew, and before it has heard, cannot
// know, and no rule helps.
func (w *simulation) lowerSessionTimeout() {
	w.gentle.Store(true)
	time.Sleep(2500 * time.Millisecond) // what was lost before has been asked for again
	w.tree.LowerSessionTTLs(w.ttl / 2)
	time.Sleep(w.ttl / 2)
	w.gentle.Store(false)
	if h := w.hosts["host1"]; w.chance(0.7) {
		h.setDisconnected(true)
		time.Sleep(w.upTo(2 * w.timeScale))
		h.setDisconnected(false)
	}
}

// What a wait may take to end, when the store has not answered, or has denied, from some moment on: it looks every 5 s
// at least, bears with silence for 10 s, and gives a request 2 s. Of the answers that deny two in a row may be lost.
const (
	silenceNoticeLimit = 25 * time.Second
	denialNoticeLimit  = 22 * time.Second
)

// silenceStore has the store answer nothing, or deny all, for longer than anybody who waits should bear it.
func (w *simulation) silenceStore() {
	bound := silenceNoticeLimit
	denies := w.chance(0.5)
	if denies {
		bound = denialNoticeLimit
	}
	w.setStoreAway(!denies, denies)
	from := w.elapsed()
	time.Sleep(bound)
	w.checker.checkWaitersNotified(from, bound)
	w.setStoreAway(false, false)
	time.Sleep(5 * time.Second)
}

func (w *simulation) setStoreAway(mute, denies bool) {
	w.storeMu.Lock()
	defer w.storeMu.Unlock()
	w.storeSilent, w.storeDenies = mute, denies
}

func (w *simulation) isStoreSilent() bool {
	w.storeMu.Lock()
	defer w.storeMu.Unlock()
	return w.storeSilent
}

// breakClaims has an operator break one claim by force, or all that wait for a lock.
func (w *simulation) breakClaims() {
	name := w.turns[int(w.randomFloat()*float64(len(w.turns)))]
	if name == "all" {
		name = "plain"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	lock, err := w.operator.Inspect(ctx, name)
	if err != nil {
		w.reportViolation("the operator cannot look at %s: %v", name, err)
		return
	}
	which := slices.Concat(lock.Holders, lock.Waiters)
	if w.kind == crowded {
		which = lock.Waiters
	} else if len(which) > 0 {
		k := int(w.randomFloat() * float64(len(which)))
		which = which[k : k+1]
	}
	for _, s := range which {
		mode := driver.BreakForce
		if w.kind == broken && w.chance(0.2) {
			mode = driver.BreakGraceful
		}
		w.checker.noteBreak(w.claimIDOf(name, s))
		err := w.operator.Break(context.WithValue(ctx, actorKey{}, actor{breaks: true}), name, s.Ref, mode)
		if err != nil && !errors.Is(err, driver.ErrLost) && !errors.Is(err, driver.ErrUnsupported) {
			w.reportViolation("the operator cannot break a claim on %s: %v", name, err)
		}
	}
}

// claimIDOf is the id of a claim that the operator sees.
func (w *simulation) claimIDOf(name string, s driver.ClaimInfo) string {
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

// runAtTree carries out one request, and tells the judge which claims it has ended. Nobody but a claim's own client and the operator
// ends one: it is told by the host.
func (w *simulation) runAtTree(h *host, what string, do func() any) any {
	if what != "remove" && what != "break" && what != "withdraw" {
		return do()
	}
	w.storeMu.Lock()
	defer w.storeMu.Unlock()
	var before []sequence.Node
	for _, name := range lockNames {
		before = append(before, w.tree.Nodes(name)...)
	}
	r := do()
	after := map[string]bool{}
	for _, name := range lockNames {
		for _, n := range w.tree.Nodes(name) {
			after[n.Key] = true
		}
	}
	for _, n := range before {
		if !after[n.Key] {
			w.checker.noteNodeRemoval(n, h, what)
		}
	}
	return r
}

// lockNames are those of the locks of a world.
var lockNames = []string{"plain", "fair", "rw", "semaphore", "leader", "timed", "twice", "fresh"}

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

// revertibleTable is a table whose rows can fall back to what they were.
type revertibleTable struct {
	record.Table // what is not kept in rows

	mu          sync.Mutex
	rows        map[string]record.Row
	count       int
	standbyAway bool // the standby is
}

// errConnectionBroke is what a client hears whose connection breaks while its commit waits for the standby.
var errConnectionBroke = errors.New("the connection broke")

func (b *revertibleTable) loseStandby() map[string]record.Row {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.standbyAway = true
	return maps.Clone(b.rows)
}

func (b *revertibleTable) revertTo(rows map[string]record.Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows = rows
}

func (b *revertibleTable) regainStandby() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.standbyAway = false
}

func (b *revertibleTable) Load(_ context.Context, name string) (record.Row, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.currentRow(name), nil
}

func (b *revertibleTable) currentRow(name string) record.Row {
	row := b.rows[name]
	row.Name = name
	return row
}

func (b *revertibleTable) Swap(_ context.Context, row record.Row) (record.Row, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rows[row.Name].Version != row.Version {
		return b.currentRow(row.Name), record.ErrConflict
	}
	b.count++
	b.rows[row.Name] = record.Row{Name: row.Name, Version: strconv.Itoa(b.count), Data: row.Data}
	if b.standbyAway {
		return b.currentRow(row.Name), errConnectionBroke
	}
	return b.currentRow(row.Name), nil
}

func (b *revertibleTable) Delete(_ context.Context, row record.Row) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.rows[row.Name].Version {
	case "":
	case row.Version:
		delete(b.rows, row.Name)
	default:
		return record.ErrConflict
	}
	if b.standbyAway {
		return errConnectionBroke
	}
	return nil
}

func (b *revertibleTable) List(_ context.Context, prefix string) iter.Seq2[record.Row, error] {
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

// oldRow is how a row stood from some moment on.
type oldRow struct {
	row  record.Row
	from time.Duration
}

// rememberRow remembers a row for those who read it late. Called with the store's mutex held, as older is.
func (w *simulation) rememberRow(row record.Row) {
	if w.kind == stale {
		w.oldRows[row.Name] = append(w.oldRows[row.Name], oldRow{row, w.elapsed()})
	}
}

// readOldRow is the row as it is, or now and then as it was some time ago.
func (w *simulation) readOldRow(row record.Row) record.Row {
	if !w.faultsActive() || !w.chance(0.2) {
		return row
	}
	at := w.elapsed() - w.upTo(w.ttl)
	for _, s := range slices.Backward(w.oldRows[row.Name]) {
		if row = s.row; s.from <= at {
			return row
		}
	}
	return record.Row{Name: row.Name}
}

// isExpectedError reports whether an error is one that stores of this kind may bring about.
func (w *simulation) isExpectedError(err error) bool {
	switch w.kind {
	case crowded:
		return errors.Is(err, holdfast.ErrQueueFull) || errors.Is(err, holdfast.ErrLost)
	case silent:
		return errors.Is(err, holdfast.ErrDenied)
	case stale, broken:
		return errors.Is(err, holdfast.ErrLost)
	case undurable:
		return errors.Is(err, errConnectionBroke)
	}
	return false
}
