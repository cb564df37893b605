package file

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/engine/record"
)

// ledger checks that the outcomes that clients were told make one history: each version was made once and replaced at
// most once, and what stands at the end is what nobody replaced. A swap that was refused but took effect, or that was
// confirmed but lost, cannot be hidden from that.
type ledger struct {
	mu       sync.Mutex
	made     map[string]string // version: its data
	replaced map[string]int
	creates  int
	deletes  int
	refused  int
}

func newLedger() *ledger { return &ledger{made: map[string]string{}, replaced: map[string]int{}} }

func (l *ledger) swapped(t testing.TB, from, to record.Row) {
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

func (l *ledger) settle(t testing.TB, now record.Row) {
	t.Helper()
	alive := 0
	if now.Version != "" {
		alive = 1
		if data, ok := l.made[now.Version]; !ok || data != string(now.Data) {
			t.Errorf("%q stands at the end as %s, and nobody was told to have written it", now.Data, now.Version)
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
		t.Errorf("%d versions were replaced or stand, %d were made", len(l.replaced), len(l.made))
	}
}

// client is one process in these tests.
type client struct {
	t    testing.TB
	tab  *table
	proc *proc
	l    *ledger
	name string
	n    int
}

func (c *client) load() record.Row {
	row, err := c.tab.Load(context.Background(), "lock")
	if err != nil {
		c.t.Errorf("%s: load: %v", c.name, err)
	}
	return row
}

// swap replaces what was read as row, and tells whether it was done.
func (c *client) swap(row record.Row) bool {
	c.n++
	to := record.Row{Name: "lock", Version: row.Version, Data: fmt.Appendf(nil, "%s %d", c.name, c.n)}
	to, err := c.tab.Swap(context.Background(), to)
	return c.told(err, func() { c.l.swapped(c.t, row, to) })
}

func (c *client) delete(row record.Row) bool {
	base, _, _ := parseFile(row.Version)
	// Not Delete, which also says nil if somebody else has deleted it: the ledger wants to know who.
	err := c.tab.recordFile("lock").deleteRecord(context.Background(), base)
	return c.told(err, func() {
		c.l.mu.Lock()
		defer c.l.mu.Unlock()
		c.l.deletes++
		c.l.replaced[row.Version]++
	})
}

func (c *client) told(err error, done func()) bool {
	switch {
	case err == nil:
		done()
	case errors.Is(err, record.ErrConflict):
		c.l.mu.Lock()
		c.l.refused++
		c.l.mu.Unlock()
	case c.proc.full != nil && errors.Is(err, syscall.ENOSPC): // which changes nothing
	default:
		c.t.Errorf("%s: %v", c.name, err)
	}
	return err == nil
}

func (m *machine) client(t testing.TB, l *ledger, name string) *client {
	p := m.process()
	tab, err := m.open(p)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t: t, tab: tab, proc: p, l: l, name: name}
}

// stopAt lets act run up to its k-th file operation, and returns a function that lets it go on to its end. reached is
// false if it had fewer operations and has ended.
func (c *client) stopAt(k int, act func()) (goOn func(), reached bool) {
	stopped, proceed, ended := make(chan bool), make(chan bool), make(chan bool)
	n := 0
	c.proc.gate = func(string) {
		if n++; n == k {
			stopped <- true
			<-proceed
		}
	}
	go func() { act(); close(ended) }()
	select {
	case <-stopped:
		return func() { close(proceed); <-ended; c.proc.gate = nil }, true
	case <-ended:
		c.proc.gate = nil
		return func() {}, false
	}
}

// acts are what a stopped process was about to do, each with what it had read before.
var acts = map[string]func(c *client, row record.Row){
	"swap":   func(c *client, row record.Row) { c.swap(row) },
	"delete": func(c *client, row record.Row) { c.delete(row) },
	"create": func(c *client, row record.Row) { c.swap(record.Row{}) },
}

// courses are what others do meanwhile. They must never be held up: each step must succeed at once.
var courses = map[string]string{
	"nothing": "", "one": "s", "two": "ss", "three": "sss", "past a cleaning": "ssssssssss", "past two": "ssssssssssssssssss",
	"delete": "d", "two and delete": "ssd", "delete and create": "dc", "and on": "dcss", "and past a cleaning": "dcssssssssss",
	"delete twice": "dcd", "create again": "ssssssdcdc",
}

func (c *client) follow(course string) {
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

// TestStoppedServer: a process stopped at any file operation of a swap, a creation or a deletion, and going on after any
// course of events, stops nobody, and is told the truth.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	for actName, act := range acts {
		for courseName, course := range courses {
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

func stopOne(t *testing.T, before, k int, act func(*client, record.Row), course string) bool {
	m, l := newMachine(), newLedger()
	a, b := m.client(t, l, "a"), m.client(t, l, "b")
	b.swap(record.Row{})
	for range before {
		b.swap(b.load())
	}
	row := a.load()
	goOn, reached := a.stopAt(k, func() { act(a, row) })
	if mine := b.load(); mine.Version != "" || course == "" || course[0] == 'c' {
		b.follow(course)
	}
	goOn()
	b.follow("")
	l.settle(t, b.load())
	if t.Failed() {
		t.Logf("stopped at operation %d after %d swaps, course %q", k, before, course)
	}
	return reached
}

// TestTwoStopped: two processes that read different versions are stopped anywhere in their swaps, and go on in either
// order after others have gone past one cleaning or several.
func TestTwoStopped(t *testing.T) {
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
	m, l := newMachine(), newLedger()
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
	l.settle(t, c.load())
	if t.Failed() {
		t.Fatalf("stopped at %d and %d, the later first: %v", ka, kb, order)
	}
}

// TestStoppedWhileCleaning: a process is stopped anywhere in a swap that cleans, or in a deletion; another then begins
// a swap with what it had read long before, and is stopped anywhere in that; the first goes on, and then the other.
func TestStoppedWhileCleaning(t *testing.T) {
	t.Parallel()
	for age := range removeEvery {
		for _, remover := range []string{"swap", "delete"} {
			t.Run(fmt.Sprintf("%s, %d old", remover, age), func(t *testing.T) {
				t.Parallel()
				for kr := 1; kr <= 30; kr++ {
					for ka := 1; ka <= 10; ka++ {
						stopCleaner(t, remover, age, kr, ka)
					}
				}
			})
		}
	}
}

func stopCleaner(t *testing.T, remover string, age, kr, ka int) {
	m, l := newMachine(), newLedger()
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
	goR, _ := r.stopAt(kr, func() { acts[remover](r, row) })
	goA, _ := a.stopAt(ka, func() { a.swap(old) })
	goR()
	goA()
	l.settle(t, c.load())
	if t.Failed() {
		t.Fatalf("%s stopped at %d, the other at %d", remover, kr, ka)
	}
}

// TestInterleavings lets several processes run one file operation at a time in random order, with long stops, half of the time
// on a disk that is full now and then.
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

func interleave(t *testing.T, seed uint64) *ledger {
	m, l := newMachine(), newLedger()
	r := rand.New(rand.NewPCG(seed, 3))
	type runner struct{ at, run, ended chan bool }
	var runners []runner
	for i := range 2 + r.IntN(3) {
		c := m.client(t, l, fmt.Sprint("p", i))
		x := runner{make(chan bool), make(chan bool), make(chan bool)}
		c.proc.gate = func(string) { x.at <- true; <-x.run }
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
	l.settle(t, m.client(t, l, "last").load())
	return l
}
