package file

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/engine/record"
)

// history checks that the outcomes that the clients got make one history: each version was made once and replaced at
// most once, the final version is the one that nobody replaced, and what was read is what some swap wrote. It detects a
// swap that was refused but took effect or was read, and one that was confirmed but lost.
type history struct {
	mu       sync.Mutex
	made     map[string]string // version: its data
	rows     []record.Row      // that were read
	replaced map[string]int
	creates  int
	deletes  int
	refused  int
}

func newHistory() *history { return &history{made: map[string]string{}, replaced: map[string]int{}} }

func (l *history) recordSwap(t testing.TB, from, to record.Row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, twice := l.made[to.Version]; twice {
		t.Errorf("version %s was made twice", to.Version)
	}
	l.made[to.Version] = string(to.Data)
	if from.Version == "" {
		l.creates++
	} else {
		l.replaced[from.Version]++
	}
}

func (l *history) checkFinal(t testing.TB, now record.Row) {
	t.Helper()
	alive := 0
	if now.Version != "" {
		alive = 1
		if data, ok := l.made[now.Version]; !ok || data != string(now.Data) {
			t.Errorf("the final version is %q, as %s, and no client wrote it", now.Data, now.Version)
		}
		l.replaced[now.Version]++
	}
	if l.creates != l.deletes+alive {
		t.Errorf("%d creations, %d deletions, and at the end %d", l.creates, l.deletes, alive)
	}
	for version := range l.made {
		if n := l.replaced[version]; n != 1 {
			t.Errorf("version %s was replaced %d times", version, n)
		}
	}
	for _, row := range l.rows {
		if data := l.made[row.Version]; row.Version != "" && data != string(row.Data) {
			t.Errorf("%s was read as %q, and contained %q", row.Version, row.Data, data)
		}
	}
	if len(l.replaced) != len(l.made) {
		t.Errorf("%d versions were replaced or are final, %d were made", len(l.replaced), len(l.made))
	}
}

// testClient is one process in these tests.
type testClient struct {
	t       testing.TB
	tab     *table
	proc    *proc
	history *history
	name    string
	n       int

	durableEvery int         // one in so many swaps is durable
	cancels      func() bool // if set: asked whenever a swap asks whether its context has ended
}

// endingContext ends when ends says so.
type endingContext struct {
	context.Context
	ends func() bool
}

func (c endingContext) Err() error {
	if c.ends() {
		return context.Canceled
	}
	return nil
}

func (c *testClient) load() record.Row {
	row, err := c.tab.Load(context.Background(), "lock")
	if err != nil {
		c.t.Errorf("%s: load: %v", c.name, err)
	}
	c.history.mu.Lock()
	defer c.history.mu.Unlock()
	c.history.rows = append(c.history.rows, row)
	return row
}

// swap replaces the version that was read as row, and reports whether it was done.
func (c *testClient) swap(row record.Row) bool {
	c.n++
	to := record.Row{Name: "lock", Version: row.Version, Data: fmt.Appendf(nil, "%s %d", c.name, c.n),
		Durable: c.n%c.durableEvery == c.durableEvery-1}
	ctx := context.Background()
	if c.cancels != nil {
		ctx = endingContext{ctx, c.cancels}
	}
	to, err := c.tab.Swap(ctx, to)
	return c.checkOutcome(err, func() { c.history.recordSwap(c.t, row, to) })
}

func (c *testClient) delete(row record.Row) bool {
	base, _, _ := parseFile(row.Version)
	// Not Delete, which also returns nil if another client has deleted the record: the history needs to know who did.
	err := c.tab.recordFile("lock").deleteRecord(context.Background(), base)
	return c.checkOutcome(err, func() {
		c.history.mu.Lock()
		defer c.history.mu.Unlock()
		c.history.deletes++
		c.history.replaced[row.Version]++
	})
}

func (c *testClient) checkOutcome(err error, done func()) bool {
	switch {
	case err == nil:
		done()
	case errors.Is(err, record.ErrConflict):
		c.history.mu.Lock()
		c.history.refused++
		c.history.mu.Unlock()
	case c.proc.full != nil && errors.Is(err, syscall.ENOSPC): // which changes nothing
	case c.cancels != nil && errors.Is(err, context.Canceled): // nor does this
	default:
		c.t.Errorf("%s: %v", c.name, err)
	}
	return err == nil
}

func (m *machine) client(t testing.TB, l *history, name string) *testClient {
	p := m.process()
	tab, err := m.open(p)
	if err != nil {
		t.Fatal(err)
	}
	return &testClient{t: t, tab: tab, proc: p, history: l, name: name, durableEvery: math.MaxInt}
}

// stopAt runs act up to its k-th file operation, and returns a function that lets it continue to its end. reached is
// false if act had fewer operations and has ended.
func (c *testClient) stopAt(k int, act func()) (goOn func(), reached bool) {
	stopped, proceed, ended := make(chan bool), make(chan bool), make(chan bool)
	n := 0
	c.proc.beforeStep = func(string) {
		if n++; n == k {
			stopped <- true
			<-proceed
		}
	}
	go func() { act(); close(ended) }()
	select {
	case <-stopped:
		return func() { close(proceed); <-ended; c.proc.beforeStep = nil }, true
	case <-ended:
		c.proc.beforeStep = nil
		return func() {}, false
	}
}

// operations are what a stopped process was about to do, each with what it had read before.
var operations = map[string]func(c *testClient, row record.Row){
	"swap":   func(c *testClient, row record.Row) { c.swap(row) },
	"delete": func(c *testClient, row record.Row) { c.delete(row) },
	"create": func(c *testClient, row record.Row) { c.swap(record.Row{}) },
}

// scenarios are what the others do meanwhile. The stopped process must not delay them: each step must succeed at once.
var scenarios = map[string]string{
	"nothing": "", "one": "s", "two": "ss", "three": "sss", "past a cleaning": "ssssssssss", "past two": "ssssssssssssssssss",
	"delete": "d", "two and delete": "ssd", "delete and create": "dc", "and on": "dcss", "and past a cleaning": "dcssssssssss",
	"delete twice": "dcd", "create again": "ssssssdcdc",
}

func (c *testClient) runSteps(course string) {
	for _, step := range course {
		row, done := c.load(), false
		switch step {
		case 's':
			done = c.swap(row)
		case 'd':
			done = c.delete(row)
		case 'c':
			done = row.Version == "" && c.swap(row)
		}
		if !done {
			c.t.Errorf("step %c of %s was held up by a stopped process", step, course)
		}
	}
}

// TestProcessStoppedAnywhere: a process that is stopped at any file operation of a swap, a creation or a deletion,
// and continues after any scenario, delays no other and gets the true outcome.
func TestProcessStoppedAnywhere(t *testing.T) {
	t.Parallel()
	for actName, act := range operations {
		for courseName, course := range scenarios {
			t.Run(actName+"/"+courseName, func(t *testing.T) {
				t.Parallel()
				for before := range removeEvery + 1 { // so that the swap is one that cleans, too
					for k := 1; stopOne(t, before, k, act, course) && !t.Failed(); k++ {
					}
				}
			})
		}
	}
}

func stopOne(t *testing.T, before, k int, act func(*testClient, record.Row), course string) bool {
	m, l := newMachine(), newHistory()
	a, b := m.client(t, l, "a"), m.client(t, l, "b")
	b.swap(record.Row{})
	for range before {
		b.swap(b.load())
	}
	reached := stopDuring(a, b, k, act, course)
	b.runSteps("")
	l.checkFinal(t, b.load())
	if t.Failed() {
		t.Logf("stopped at operation %d after %d swaps, course %q", k, before, course)
	}
	return reached
}

// stopDuring stops a at operation k of what it does with the current version, has b run a course, and lets a
// continue. It reports whether a has so many operations.
func stopDuring(a, b *testClient, k int, act func(*testClient, record.Row), course string) (reached bool) {
	row := a.load()
	goOn, reached := a.stopAt(k, func() { act(a, row) })
	if mine := b.load(); mine.Version != "" || course == "" || course[0] == 'c' {
		b.runSteps(course)
	}
	goOn()
	return reached
}

// TestTwoProcessesStopped: two processes that read different versions are stopped anywhere in their swaps. They
// continue in either order after others have removed old versions once or several times.
func TestTwoProcessesStopped(t *testing.T) {
	t.Parallel()
	for between := range 3 {
		for after := range 2*removeEvery + 2 {
			t.Run(fmt.Sprintf("%d between, %d after", between, after), func(t *testing.T) {
				t.Parallel()
				for ka := 1; ka <= 12; ka++ {
					for kb := 1; kb <= 12; kb++ {
						for _, order := range []bool{false, true} {
							stopTwo(t, between, after, ka, kb, order)
						}
					}
				}
			})
		}
	}
}

func stopTwo(t *testing.T, between, after, ka, kb int, order bool) {
	m, l := newMachine(), newHistory()
	a, b, c := m.client(t, l, "a"), m.client(t, l, "b"), m.client(t, l, "c")
	c.swap(record.Row{})
	rowA := a.load()
	goA, _ := a.stopAt(ka, func() { a.swap(rowA) })
	for range between {
		c.swap(c.load())
	}
	rowB := b.load()
	goB, _ := b.stopAt(kb, func() { b.swap(rowB) })
	for range after {
		c.swap(c.load())
	}
	if order {
		goA, goB = goB, goA
	}
	goA()
	c.swap(c.load())
	goB()
	c.swap(c.load())
	l.checkFinal(t, c.load())
	if t.Failed() {
		t.Fatalf("stopped at %d and %d, the later first: %v", ka, kb, order)
	}
}

// TestStoppedWhileRemoving: a process is stopped anywhere in a swap that removes old versions, or in a deletion.
// Another process then begins a swap of a version that it read long before, and is stopped anywhere in that. The
// first one continues, and then the other.
func TestStoppedWhileRemoving(t *testing.T) {
	t.Parallel()
	for age := range removeEvery {
		for _, remover := range []string{"swap", "delete"} {
			t.Run(fmt.Sprintf("%s, %d old", remover, age), func(t *testing.T) {
				t.Parallel()
				for kr := 1; kr <= 30; kr++ {
					for ka := 1; ka <= 20; ka++ {
						stopCleaner(t, remover, age, kr, ka)
					}
				}
			})
		}
	}
}

func stopCleaner(t *testing.T, remover string, age, kr, ka int) {
	m, l := newMachine(), newHistory()
	a, r, c := m.client(t, l, "a"), m.client(t, l, "r"), m.client(t, l, "c")
	c.swap(record.Row{})
	var old record.Row
	for i := range removeEvery - 1 {
		if i == removeEvery-1-age {
			old = a.load()
		}
		c.swap(c.load())
	}
	if old.Version == "" {
		old = a.load()
	}
	row := r.load()
	goR, _ := r.stopAt(kr, func() { operations[remover](r, row) })
	goA, _ := a.stopAt(ka, func() { a.swap(old) })
	goR()
	goA()
	l.checkFinal(t, c.load())
	if t.Failed() {
		t.Fatalf("%s stopped at %d, the other at %d", remover, kr, ka)
	}
}

// prove runs the long counts, which take minutes.
var prove = flag.Bool("prove", false, "run the long counts")

// TestInterleavings runs several processes, some with two goroutines, one file operation at a time in random order,
// with long stops and late swaps, half of the time on a disk that is full now and then, with swaps that are given up.
func TestInterleavings(t *testing.T) {
	t.Parallel()
	for _, course := range []struct {
		name                   string
		swaps, switches, seeds int // swaps per goroutine, and a switch in one of so many operations
	}{{"in turns", 6, 8, 800}, {"each alone for long", 30, 80, 500}} {
		t.Run(course.name, func(t *testing.T) {
			t.Parallel()
			runInterleavings(t, course.swaps, course.switches, course.seeds)
		})
	}
}

func runInterleavings(t *testing.T, swaps, switches, seeds int) {
	if *prove {
		seeds *= 20
	}
	done, refused := 0, 0
	for seed := range seeds {
		l := interleave(t, uint64(seed), swaps, switches)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		done, refused = done+len(l.made)+l.deletes, refused+l.refused
	}
	t.Logf("%d schedules: %d swaps and deletions done, %d refused", seeds, done, refused)
	if refused == 0 {
		t.Error("no swap was ever refused: the schedules are not worth anything")
	}
}

func interleave(t *testing.T, seed uint64, swaps, switches int) *history {
	m, l := newMachine(), newHistory()
	r := rand.New(rand.NewPCG(seed, 3))
	stopped, ended := make(chan chan bool), make(chan bool)
	var runners []chan bool // those that are stopped
	for i := range 2 + r.IntN(3) {
		c := m.client(t, l, fmt.Sprint("p", i))
		c.proc.beforeStep = func(step string) {
			if step != "close" { // which a client does while its other goroutines cannot go on
				goOn := make(chan bool)
				stopped <- goOn
				<-goOn
			}
		}
		own := rand.New(rand.NewPCG(seed, uint64(i)))
		if seed%4 >= 2 {
			c.durableEvery = 5
		}
		if seed%2 == 1 {
			c.proc.full = func() bool { return own.IntN(3) == 0 }
			c.cancels = func() bool { return own.IntN(9) == 0 }
		}
		for range 1 + r.IntN(3)/2 {
			go func() {
				var earlier record.Row
				for range swaps {
					row := c.load()
					if own.IntN(swaps) == 0 {
						row, earlier = earlier, row
					}
					if row.Version != "" && own.IntN(swaps) == 0 {
						c.delete(row)
					} else {
						c.swap(row)
					}
				}
				ended <- true
			}()
			runners = append(runners, <-stopped)
		}
	}
	for current := 0; len(runners) > 0; {
		if r.IntN(switches) == 0 || current >= len(runners) {
			current = r.IntN(len(runners))
		}
		runners[current] <- true
		select {
		case runners[current] = <-stopped:
		case <-ended:
			runners = slices.Delete(runners, current, current+1)
		}
	}
	l.checkFinal(t, m.client(t, l, "last").load())
	return l
}

// TestLateSwap: a swap of a version that was replaced long ago is refused before it writes anything.
func TestLateSwap(t *testing.T) {
	t.Parallel()
	m, l := newMachine(), newHistory()
	late, other := m.client(t, l, "late"), m.client(t, l, "other")
	other.swap(record.Row{})
	row := late.load()
	other.swap(other.load())
	late.proc.beforeStep = func(step string) {
		if !slices.Contains([]string{"open", "look", "remove", "close"}, step) {
			t.Errorf("a late swap has come to %q", step)
		}
	}
	if late.swap(row) {
		t.Error("it was not refused")
	}
}

// TestClientsReuseFiles: clients that write one record in turns make no new file each time, and keep none.
func TestClientsReuseFiles(t *testing.T) {
	t.Parallel()
	m, l := newMachine(), newHistory()
	clients := []*testClient{m.client(t, l, "a"), m.client(t, l, "b"), m.client(t, l, "c")}
	clients[0].swap(record.Row{})
	made := 0
	for _, c := range clients {
		c.proc.beforeStep = func(step string) {
			switch step {
			case "create":
				made++
			case "link":
				t.Error("a client that is not alone keeps a file")
			}
		}
	}
	const turns = 100
	for i := range turns {
		c := clients[i%len(clients)]
		c.swap(c.load())
	}
	if made > turns/5 {
		t.Errorf("%d swaps have made %d files", turns, made)
	}
	l.checkFinal(t, clients[0].load())
}

// keptClient returns a client that has made a record, and has so many of its files in use again that it keeps all.
func (m *machine) keptClient(t testing.TB, l *history, name string, extra int) *testClient {
	c := m.client(t, l, name)
	c.swap(record.Row{})
	for range 4*removeEvery + extra {
		c.swap(c.load())
	}
	return c
}

// TestStoppedWithKeptFiles: a process that has swapped alone and is stopped at any file operation, and continues after
// any scenario, delays no other and gets the true outcome. Then it swaps on.
func TestStoppedWithKeptFiles(t *testing.T) {
	t.Parallel()
	for actName, act := range operations {
		for courseName, course := range scenarios {
			t.Run(actName+"/"+courseName, func(t *testing.T) {
				t.Parallel()
				for extra := range removeEvery {
					for k := 1; stopKept(t, extra, k, act, course) && !t.Failed(); k++ {
					}
				}
			})
		}
	}
}

func stopKept(t *testing.T, extra, k int, act func(*testClient, record.Row), course string) bool {
	m, l := newMachine(), newHistory()
	a := m.keptClient(t, l, "a", extra)
	b := m.client(t, l, "b")
	reached := stopDuring(a, b, k, act, course)
	for range 2 * removeEvery {
		a.swap(a.load())
	}
	l.checkFinal(t, b.load())
	if t.Failed() {
		t.Logf("stopped at operation %d, extra %d, course %q", k, extra, course)
	}
	return reached
}

// TestKeptFilesOfTwo: two processes that write in turns, for so long each that they keep files, are both stopped
// anywhere.
func TestKeptFilesOfTwo(t *testing.T) {
	t.Parallel()
	for first := range 2*removeEvery + 1 {
		t.Run(fmt.Sprintf("%d swaps", first), func(t *testing.T) {
			t.Parallel()
			for ka := 1; ka <= 10; ka++ {
				for kb := 1; kb <= 10; kb++ {
					m, l := newMachine(), newHistory()
					a := m.keptClient(t, l, "a", 0)
					b := m.client(t, l, "b")
					goA, _ := a.stopAt(ka, func() { a.swap(a.load()) })
					for range first {
						b.swap(b.load())
					}
					row := b.load()
					goB, _ := b.stopAt(kb, func() { b.swap(row) })
					goA()
					for range removeEvery + 1 {
						a.swap(a.load())
					}
					goB()
					b.swap(b.load())
					l.checkFinal(t, b.load())
					if t.Failed() {
						t.Fatalf("stopped at %d and %d", ka, kb)
					}
				}
			}
		})
	}
}

// TestKeptFilesLateSwap: a client that keeps files, and that asks for a swap of a version which it has replaced
// itself, is refused.
func TestKeptFilesLateSwap(t *testing.T) {
	t.Parallel()
	m, l := newMachine(), newHistory()
	c := m.client(t, l, "a")
	c.swap(record.Row{})
	var rows []record.Row
	for range 5 * removeEvery {
		rows = append(rows, c.load())
		c.swap(c.load())
		for _, row := range rows {
			if c.swap(row) {
				t.Fatalf("%s was swapped twice", row.Version)
			}
		}
		for range removeEvery { // as refused swaps end the use of kept files
			rows = append(rows, c.load())
			c.swap(c.load())
		}
	}
	l.checkFinal(t, c.load())
}

// TestKeptFilesRemoved: a client whose kept files another one has removed swaps by another file, also if the other one
// is stopped before its own swap. It is refused only if the other one was faster.
func TestKeptFilesRemoved(t *testing.T) {
	t.Parallel()
	for ka := 1; ; ka++ {
		stopped := false
		for kb := 1; kb <= 12; kb++ {
			m, l := newMachine(), newHistory()
			a := m.keptClient(t, l, "a", 0)
			b, c := m.client(t, l, "b"), m.client(t, l, "c")
			row, done := a.load(), false
			goA, reached := a.stopAt(ka, func() { done = a.swap(row) })
			goB, _ := b.stopAt(kb, func() { b.swap(row) })
			other := strings.HasPrefix(string(c.load().Data), "b")
			goA()
			if done == other {
				t.Errorf("stopped at %d and %d: that the other one was faster is %t, and the swap is done: %t", ka, kb, other, done)
			}
			goB()
			a.swap(a.load())
			l.checkFinal(t, a.load())
			stopped = stopped || reached
		}
		if !stopped || t.Failed() {
			return
		}
	}
}

// TestKeptFilesOfOldVersion: a client that keeps files up to a version that others have replaced since, and has
// removed old versions itself since, does not swap that version.
func TestKeptFilesOfOldVersion(t *testing.T) {
	t.Parallel()
	for k := 1; ; k++ {
		m, l := newMachine(), newHistory()
		a := m.keptClient(t, l, "a", 0)
		b := m.client(t, l, "b")
		old := a.load()
		for range 2 * removeEvery {
			b.swap(b.load())
		}
		row := a.load()
		goA, reached := a.stopAt(k, func() { a.swap(row) })
		if b.load().Version == row.Version {
			b.swap(row)
		}
		goA()
		if a.swap(old) {
			t.Fatalf("a version was swapped that others had replaced, after a stop at %d", k)
		}
		l.checkFinal(t, a.load())
		if !reached {
			return
		}
	}
}

// TestSwapsAlone: a client that is alone at a record makes these file operations for each swap, and no others. One of
// removeEvery swaps lists the directory.
func TestSwapsAlone(t *testing.T) {
	t.Parallel()
	m, l := newMachine(), newHistory()
	c := m.keptClient(t, l, "a", 0)
	row := c.load()
	var steps []string
	c.proc.beforeStep = func(step string) { steps = append(steps, step) }
	lists := 0
	for range 3 * removeEvery {
		steps = nil
		next, err := c.tab.Swap(t.Context(), record.Row{Name: "lock", Version: row.Version, Data: row.Data})
		if err != nil {
			t.Fatal(err)
		}
		row.Version = next.Version
		if i := slices.Index(steps, "list"); i >= 0 {
			lists++
			steps = slices.Delete(steps, i, i+1)
		}
		steps = slices.DeleteFunc(steps, func(step string) bool { // two of the test's make one
			return step == "write half" || step == "find to link"
		})
		if want := []string{"open", "remove", "write", "link", "close"}; !slices.Equal(steps, want) {
			t.Errorf("a swap makes %q, and not %q", steps, want)
		}
	}
	if lists != 3 {
		t.Errorf("%d lists", lists)
	}
}

// TestNamesInDirectory: the names in the directory of a record do not pile up, also if durable swaps, which keep no
// file, come between the others.
func TestNamesInDirectory(t *testing.T) {
	t.Parallel()
	for _, durableEvery := range []int{2, 3, 7, 20, math.MaxInt} {
		m, l := newMachine(), newHistory()
		c := m.client(t, l, "a")
		c.durableEvery = durableEvery
		c.swap(record.Row{})
		for range 100 * removeEvery {
			c.swap(c.load())
			dir := m.root.entries["locks"].entries["lock"]
			if n := len(dir.entries); n > 4*removeEvery {
				t.Fatalf("%d names, with a durable one of %d swaps: %q", n, durableEvery, slices.Sorted(maps.Keys(dir.entries)))
			}
		}
	}
}

// TestOneClientSwapsTwice: of two swaps of one version that one client makes at the same time, one is done and one is
// refused.
func TestOneClientSwapsTwice(t *testing.T) {
	t.Parallel()
	for k := 1; ; k++ {
		m, l := newMachine(), newHistory()
		c := m.keptClient(t, l, "a", 0)
		row := c.load()
		first := false
		goOn, reached := c.stopAt(k, func() { first = c.swap(row) })
		second := c.swap(row)
		goOn()
		if first == second {
			t.Errorf("after a stop at %d: %t and %t", k, first, second)
		}
		for range 2 * removeEvery {
			c.swap(c.load())
		}
		l.checkFinal(t, c.load())
		if !reached || t.Failed() {
			return
		}
	}
}

// TestOpenFiles: a client keeps the files of some records open, and not of many. It closes those of a record that it
// deletes, and all when it is closed.
func TestOpenFiles(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := m.process()
	tab, err := m.open(p)
	if err != nil {
		t.Fatal(err)
	}
	before, most := len(p.handles), 0
	var row record.Row
	for i := range 2 * maxOpenRecords {
		row = record.Row{Name: fmt.Sprint("lock ", i)}
		for range 4*removeEvery + 1 {
			if row, err = tab.Swap(t.Context(), row); err != nil {
				t.Fatal(err)
			}
			most = max(most, len(p.handles)-before)
		}
	}
	if perRecord := removeEvery + 2; most > (maxOpenRecords+1)*perRecord || most < maxOpenRecords {
		t.Errorf("%d files were open at one time", most)
	}
	open := len(p.handles)
	if err := tab.Delete(t.Context(), row); err != nil || len(p.handles) >= open {
		t.Errorf("%d files were open before a record was deleted, and then %d: %v", open, len(p.handles), err)
	}
	if err := tab.Close(); err != nil || len(p.handles) > 0 {
		t.Errorf("after Close, %d files are open: %v", len(p.handles), err)
	}
}

// TestWithoutLinks: on a file system where files have one name, swaps go on as if no file were kept.
func TestWithoutLinks(t *testing.T) {
	t.Parallel()
	m, l := newMachine(), newHistory()
	c := m.client(t, l, "a")
	c.proc.noLinks = true
	c.swap(record.Row{})
	for range 5 * removeEvery {
		if !c.swap(c.load()) {
			t.Fatal("a swap was refused")
		}
	}
	l.checkFinal(t, c.load())
}

// versionsIn returns the versions in the record's directory, the lowest first, without a step of any process.
func (m *machine) versionsIn(entry string) (versions []version) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if dir := m.root.entries["locks"].entries[entry]; dir != nil {
		for name := range dir.entries {
			if v, staged, ok := parseFile(name); ok && !staged {
				versions = append(versions, v)
			}
		}
	}
	sortVersions(versions)
	return versions
}

// TestKeptFilesOfLaterRecord: a swap is stopped anywhere, and meanwhile its own client deletes the record, makes it
// again and keeps its files. What the swap knew of the files of the old record is not used for the later one: no swap
// of that removes the current version, or any but the lowest.
func TestKeptFilesOfLaterRecord(t *testing.T) {
	t.Parallel()
	for swaps := range 6 * removeEvery {
		for k := 1; ; k++ {
			m, l := newMachine(), newHistory()
			a, b := m.client(t, l, "a"), m.client(t, l, "b")
			a.swap(record.Row{})
			for range 2 * removeEvery { // in turns, so that neither keeps files
				a.swap(a.load())
				b.swap(b.load())
			}
			row := a.load()
			goOn, reached := a.stopAt(k, func() { a.swap(row) })
			if now := a.load(); now.Version == row.Version {
				a.delete(now)
			}
			a.swap(record.Row{})
			for range swaps {
				a.swap(a.load())
			}
			goOn()
			for range 2 * removeEvery {
				row := a.load()
				a.proc.beforeStep = func(step string) {
					there := m.versionsIn("lock")
					if !slices.ContainsFunc(there, func(v version) bool { return v.String() == row.Version }) {
						t.Errorf("%s was current, and at %q of its swap there are %s", row.Version, step, there)
					}
					if whole := runOf(there); !whole.isEmpty() && whole.below != there[len(there)-1].seq+1 {
						t.Errorf("at %q of a swap there are %s", step, there)
					}
				}
				a.swap(row)
				a.proc.beforeStep = nil
			}
			l.checkFinal(t, a.load())
			if t.Failed() {
				t.Fatalf("stopped at operation %d, %d swaps of the later record", k, swaps)
			}
			if !reached {
				break
			}
		}
	}
}

// TestListInParts: a record whose directory is too large to be listed by one system call is read as it is, and not as
// absent, although each version that the second call would have found has been removed before that.
func TestListInParts(t *testing.T) {
	m, l := newMachine(), newHistory()
	a, b := m.client(t, l, "a"), m.client(t, l, "b")
	b.swap(record.Row{})
	before := b.load()
	a.proc.betweenLists = func() {
		for range 3 * removeEvery {
			b.swap(b.load())
		}
	}
	if row := a.load(); row.Version == "" || row.Version == before.Version {
		t.Errorf("version %q is read, and there was one after %q", row.Version, before.Version)
	}
	l.checkFinal(t, b.load())
}

// TestReaderSeesNoLateSwap: a reader that is stopped anywhere, while the version that it has found is replaced and its
// file is in use again, reads what some version contained, and not what a late swap or deletion, that was refused, has
// written. A client that creates the record reads it, too, and would remove a record that it takes for deleted.
func TestReaderSeesNoLateSwap(t *testing.T) {
	t.Parallel()
	for _, lateName := range []string{"swap", "delete"} {
		for _, readerName := range []string{"load", "create"} {
			t.Run(readerName+", late "+lateName, func(t *testing.T) {
				t.Parallel()
				for before := range 2 * removeEvery {
					for after := range 3 * removeEvery {
						for k := 1; stopReader(t, before, after, k, readerName, lateName); k++ {
						}
					}
				}
			})
		}
	}
}

func stopReader(t *testing.T, before, after, k int, readerName, lateName string) bool {
	m, l := newMachine(), newHistory()
	a, reader := m.client(t, l, "a"), m.client(t, l, "reader")
	a.swap(record.Row{})
	for range before {
		a.swap(a.load())
	}
	replaced := a.load()
	a.swap(replaced)
	goOn, reached := reader.stopAt(k, func() {
		if readerName == "load" {
			reader.load()
		} else {
			reader.swap(record.Row{})
		}
	})
	for range after {
		a.swap(a.load())
	}
	operations[lateName](a, replaced)
	goOn()
	l.checkFinal(t, a.load())
	if t.Failed() {
		t.Fatalf("stopped at operation %d, %d swaps before and %d after", k, before, after)
	}
	return reached
}
