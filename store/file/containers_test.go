package file

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// in is the machine as a container sees it that has an id of the boot of its own.
func (m *machine) in(container string) *machine {
	return &machine{memDisk: m.memDisk, bootID: container, up: m.up, wall: m.wall}
}

// pass lets time pass on all clocks of the machine.
func (m *machine) pass(d time.Duration) { m.up, m.wall = m.up+d, m.wall.Add(d) }

func clockOf(tab *table) int64 { now, _ := tab.Now(); return now }

// TestContainersOwnBoots: containers that have an id of the boot of their own share one clock while any client lives, whoever
// of them goes meanwhile; and the clock never falls.
func TestContainersOwnBoots(t *testing.T) {
	t.Parallel()
	m := newMachine()
	host := m.mustOpen(t)
	m.wall = m.wall.Add(time.Hour) // set, so that a clock that begins anew would be another
	one := m.in("one").mustOpen(t)
	if clockOf(one) != clockOf(host) {
		t.Error("a container and its host have different clocks")
	}
	if host.IsDead(one.Session()) || one.IsDead(host.Session()) {
		t.Error("they take each other for gone")
	}
	_ = host.Close()
	two := m.in("two").mustOpen(t)
	if clockOf(two) != clockOf(one) {
		t.Error("two containers have different clocks when the host's client is gone")
	}
	m.up += 2 * time.Minute // past the floor
	for _, tab := range []*table{one, two} {
		tab.clock.readBootClock = func() time.Duration { return m.up }
		if err := tab.clock.ensureFloor(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
	last := clockOf(two)
	_ = one.Close()
	_ = two.Close()
	three := m.in("three").mustOpen(t)
	if clockOf(three) < last {
		t.Errorf("the clock fell from %d to %d", last, clockOf(three))
	}
}

// TestContainersOpenAtOnce: a client of another container opens the store, and perhaps closes it again, at any operation of
// an opening. Those who live then have one clock, of which all that is on the disk is true.
func TestContainersOpenAtOnce(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", "one", "two", "an older one"} {
		for _, comes := range []string{"one", "two"} {
			for _, stays := range []bool{true, false} {
				for at := 1; openAmid(t, before, comes, stays, at); at++ {
				}
			}
		}
	}
}

// openAmid lets a client of container one open the store, and another one at one of its operations. It reports whether there
// was such an operation.
func openAmid(t *testing.T, before, comes string, stays bool, at int) bool {
	t.Helper()
	m := newMachine()
	if before != "" {
		_ = m.in(before).mustOpen(t).Close()
	}
	m.wall = m.wall.Add(time.Hour)
	var other *table
	p, steps := m.process(), 0
	p.gate = func(string) {
		if steps++; steps == at {
			other = m.in(comes).mustOpen(t)
			if !stays {
				_ = other.Close()
			}
		}
	}
	tab, err := m.in("one").open(p)
	if err != nil {
		t.Fatalf("before %q, %q at %d: %v", before, comes, at, err)
	}
	all := []*table{tab, m.in("two").mustOpen(t), m.in("three").mustOpen(t)}
	if stays && other != nil {
		all = append(all, other)
	}
	for _, tab := range all {
		if clockOf(tab) != clockOf(all[0]) {
			t.Fatalf("before %q, %q at %d: the clocks are %v apart", before, comes, at,
				time.Duration(clockOf(tab)-clockOf(all[0]))*time.Microsecond)
		}
		if err := tab.clock.ensureFloor(t.Context(), tab.clock.floor.Load()+1); err != nil {
			t.Fatalf("before %q, %q at %d: %v", before, comes, at, err)
		}
	}
	return steps >= at
}

// TestContainersInTurn: commands that run one after the other in containers with an id of the boot of their own, with no client
// alive in between, do not move the clock: it goes as fast as the machine's, and a timed lock stands until its time.
func TestContainersInTurn(t *testing.T) {
	t.Parallel()
	m := newMachine()
	first := m.in("host").mustOpen(t)
	began := clockOf(first)
	_ = first.Close()
	for n := 1; n <= 100; n++ {
		m.pass(time.Second)
		tab := m.in([]string{"container", "host"}[n%2]).mustOpen(t)
		if ahead := time.Duration(clockOf(tab)-began)*time.Microsecond - time.Duration(n)*time.Second; ahead != 0 {
			t.Fatalf("after %d commands in as many seconds the clock is %v ahead", n, ahead)
		}
		if err := tab.clock.ensureFloor(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		_ = tab.Close()
	}
}

// TestTimedLockAmongContainers: the same through a lock: nobody is let in beside a detached claim while it has time left.
func TestTimedLockAmongContainers(t *testing.T) {
	t.Parallel()
	m := newMachine()
	try := func(container, id string) error {
		s := record.New(m.in(container).mustOpen(t))
		defer s.Close()
		_, err := s.Acquire(t.Context(), driver.Claim{Name: "deploy", ID: id, Kind: driver.KindMutex, Limit: 1, Weight: 1,
			TTL: time.Minute, Detached: true})
		return err
	}
	if err := try("host", "first"); err != nil {
		t.Fatal(err)
	}
	for n := range 59 {
		m.pass(time.Second)
		if err := try([]string{"container", "host"}[n%2], "later"); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("after %d of 60 s: %v", n+1, err)
		}
	}
	m.pass(2 * time.Second)
	if err := try("container", "last"); err != nil {
		t.Errorf("after its time: %v", err)
	}
}

// TestWallClockTellsBoots: what is taken for another boot, and by how far the clock is then ahead at most.
func TestWallClockTellsBoots(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change func(m *machine)
		same   bool
	}{
		"another container":                  {func(*machine) {}, true},
		"the wall clock was set forward":     {func(m *machine) { m.wall = m.wall.Add(2 * time.Millisecond) }, false},
		"the wall clock was set back":        {func(m *machine) { m.wall = m.wall.Add(-time.Hour) }, false},
		"a restart":                          {func(m *machine) { m.up = 20 * time.Second }, false},
		"a restart with a clock that stops":  {func(m *machine) { m.wall = m.wall.Add(20*time.Second - m.up); m.up = 20 * time.Second }, false},
		"no battery behind the wall clock":   {func(m *machine) { m.wall = time.UnixMicro(m.up.Microseconds()) }, false},
		"the same after hours without a use": {func(m *machine) { m.pass(5 * time.Hour) }, true},
	} {
		m := newMachine()
		m.up = time.Hour
		if strings.HasPrefix(what, "no battery") {
			c.change(m)
		}
		tab := m.in("host").mustOpen(t)
		m.pass(time.Second)
		tab.clock.readBootClock = func() time.Duration { return m.up }
		last, state := clockOf(tab), tab.clock.offset
		_ = tab.Close()
		c.change(m)
		tab = m.in("container").mustOpen(t)
		if same := tab.clock.offset == state; same != c.same {
			t.Errorf("%s: taken for the same boot: %t", what, same)
		}
		if clockOf(tab) < last {
			t.Errorf("%s: the clock fell by %d us", what, last-clockOf(tab))
		}
		_ = tab.Close()
	}
}
