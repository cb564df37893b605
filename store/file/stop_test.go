package file

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/engine/record"
)

// history checks that the outcomes that the clients got make one history: each version was made once and replaced at
// most once, and the final version is the one that nobody replaced. It detects a swap that was refused but took
// effect, and one that was confirmed but lost.
type history struct {
	mu       sync.Mutex
	made     map[string]string // version: its data
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
}

func (c *testClient) load() record.Row {
	row, err := c.tab.Load(context.Background(), "lock")
	if err != nil {
		c.t.Errorf("%s: load: %v", c.name, err)
	}
	return row
}

// swap replaces the version that was read as row, and reports whether it was done.
func (c *testClient) swap(row record.Row) bool {
	c.n++
	to := record.Row{Name: "lock", Version: row.Version, Data: fmt.Appendf(nil, "%s %d", c.name, c.n)}
	to, err := c.tab.Swap(context.Background(), to)
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
	return &testClient{t: t, tab: tab, proc: p, history: l, name: name}
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
	row := a.load()
	goOn, reached := a.stopAt(k, func() { act(a, row) })
	if mine := b.load(); mine.Version != "" || course == "" || course[0] == 'c' {
		b.runSteps(course)
	}
	goOn()
	b.runSteps("")
	l.checkFinal(t, b.load())
	if t.Failed() {
		t.Logf("stopped at operation %d after %d swaps, course %q", k, before, course)
	}
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

// TestInterleavings runs several processes one file operation at a time in random order, with long stops, half of the
// time on a disk that is full now and then.
func TestInterleavings(t *testing.T) {
	t.Parallel()
	seeds := 3000
	if testing.Short() {
		seeds = 300
	}
	done, refused := 0, 0
	for seed := range seeds {
		l := interleave(t, uint64(seed))
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

func interleave(t *testing.T, seed uint64) *history {
	m, l := newMachine(), newHistory()
	r := rand.New(rand.NewPCG(seed, 3))
	type runner struct{ at, run, ended chan bool }
	var runners []runner
	for i := range 2 + r.IntN(3) {
		c := m.client(t, l, fmt.Sprint("p", i))
		x := runner{make(chan bool), make(chan bool), make(chan bool)}
		c.proc.beforeStep = func(string) { x.at <- true; <-x.run }
		own := rand.New(rand.NewPCG(seed, uint64(i)))
		if seed%2 == 1 {
			c.proc.full = func() bool { return own.IntN(3) == 0 }
		}
		go func() {
			for range 6 {
				if row := c.load(); row.Version != "" && own.IntN(6) == 0 {
					c.delete(row)
				} else {
					c.swap(row)
				}
			}
			close(x.ended)
		}()
		<-x.at
		runners = append(runners, x)
	}
	for current := 0; len(runners) > 0; {
		if r.IntN(8) == 0 || current >= len(runners) {
			current = r.IntN(len(runners))
		}
		x := runners[current]
		x.run <- true
		select {
		case <-x.at:
		case <-x.ended:
			runners = append(runners[:current], runners[current+1:]...)
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

// TestClientsReuseFiles: clients that write one record in turns make no new file each time.
func TestClientsReuseFiles(t *testing.T) {
	t.Parallel()
	m, l := newMachine(), newHistory()
	clients := []*testClient{m.client(t, l, "a"), m.client(t, l, "b"), m.client(t, l, "c")}
	clients[0].swap(record.Row{})
	made := 0
	for _, c := range clients {
		c.proc.beforeStep = func(step string) {
			if step == "create" {
				made++
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
