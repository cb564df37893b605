package file

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// inContainer is the machine as a container with its own boot id sees it.
func (m *machine) inContainer(container string) *machine {
	return &machine{memDisk: m.memDisk, bootID: container, up: m.up, wall: m.wall}
}

// advanceClocks advances all clocks of the machine.
func (m *machine) advanceClocks(d time.Duration) { m.up, m.wall = m.up+d, m.wall.Add(d) }

func clockOf(tab *table) int64 { now := tab.TokenFloor(); return now }

// TestContainersShareClock: containers with their own boot ids share one clock as long as any client is alive,
// whichever of them close meanwhile. The clock never falls.
func TestContainersShareClock(t *testing.T) {
	t.Parallel()
	m := newMachine()
	host := m.mustOpen(t)
	m.wall = m.wall.Add(time.Hour) // set, so that a clock that is fixed again would differ
	one := m.inContainer("one").mustOpen(t)
	if clockOf(one) != clockOf(host) {
		t.Error("a container and its host have different clocks")
	}
	if host.IsDead(one.Session()) || one.IsDead(host.Session()) {
		t.Error("they take each other for dead")
	}
	_ = host.Close()
	two := m.inContainer("two").mustOpen(t)
	if clockOf(two) != clockOf(one) {
		t.Error("two containers have different clocks when the host's client is closed")
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
	three := m.inContainer("three").mustOpen(t)
	if clockOf(three) < last {
		t.Errorf("the clock fell from %d to %d", last, clockOf(three))
	}
}

// TestContainersOpenConcurrently: a client of another container opens the store, and perhaps closes it again, at any
// operation of an opening. All live clients then have the same clock, and its state on the disk is right.
func TestContainersOpenConcurrently(t *testing.T) {
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

// openAmid lets a client of container one open the store, and another client at the given operation of that. It
// reports whether there was such an operation.
func openAmid(t *testing.T, before, comes string, stays bool, at int) bool {
	t.Helper()
	m := newMachine()
	if before != "" {
		_ = m.inContainer(before).mustOpen(t).Close()
	}
	m.wall = m.wall.Add(time.Hour)
	var other *table
	p, steps := m.process(), 0
	p.beforeStep = func(string) {
		if steps++; steps == at {
			other = m.inContainer(comes).mustOpen(t)
			if !stays {
				_ = other.Close()
			}
		}
	}
	tab, err := m.inContainer("one").open(p)
	if err != nil {
		t.Fatalf("before %q, %q at %d: %v", before, comes, at, err)
	}
	all := []*table{tab, m.inContainer("two").mustOpen(t), m.inContainer("three").mustOpen(t)}
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

// TestContainersInTurn: commands that run one after the other in containers with their own boot ids, with no client
// alive in between, do not move the clock. It runs as fast as the machine's, and a timed lock is held until its time.
func TestContainersInTurn(t *testing.T) {
	t.Parallel()
	m := newMachine()
	first := m.inContainer("host").mustOpen(t)
	began := clockOf(first)
	_ = first.Close()
	for n := 1; n <= 100; n++ {
		m.advanceClocks(time.Second)
		tab := m.inContainer([]string{"container", "host"}[n%2]).mustOpen(t)
		if ahead := time.Duration(clockOf(tab)-began)*time.Microsecond - time.Duration(n)*time.Second; ahead != 0 {
			t.Fatalf("after %d commands in as many seconds the clock is %v ahead", n, ahead)
		}
		if err := tab.clock.ensureFloor(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		_ = tab.Close()
	}
}

// TestTimedLockAmongContainers: in the same situation, no claim is granted next to a detached claim that has not
// expired.
func TestTimedLockAmongContainers(t *testing.T) {
	t.Parallel()
	m := newMachine()
	try := func(container, id string) error {
		s := record.New(m.inContainer(container).mustOpen(t))
		defer s.Close()
		_, err := s.Acquire(t.Context(),
			driver.Claim{Name: "deploy", ID: id, Kind: driver.KindMutex, Limit: 1, Weight: 1,
				TTL: time.Minute, Detached: true})
		return err
	}
	if err := try("host", "first"); err != nil {
		t.Fatal(err)
	}
	for n := range 59 {
		m.advanceClocks(time.Second)
		if err := try([]string{"container", "host"}[n%2], "later"); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("after %d of 60 s: %v", n+1, err)
		}
	}
	m.advanceClocks(2 * time.Second)
	if err := try("container", "last"); err != nil {
		t.Errorf("after its time: %v", err)
	}
}

// TestWallClockDistinguishesBoots: which changes of the clocks count as another boot. The clock falls in none of them.
func TestWallClockDistinguishesBoots(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change func(m *machine)
		same   bool
	}{
		"another container":                 {func(*machine) {}, true},
		"the wall clock was set forward":    {func(m *machine) { m.wall = m.wall.Add(2 * time.Millisecond) }, false},
		"the wall clock was set back":       {func(m *machine) { m.wall = m.wall.Add(-time.Hour) }, false},
		"a restart":                         {func(m *machine) { m.up = 20 * time.Second }, false},
		"a restart with a clock that stops": {func(m *machine) { m.wall = m.wall.Add(20*time.Second - m.up); m.up = 20 * time.Second }, false},
		"no battery behind the wall clock": {func(m *machine) { m.wall = time.UnixMicro(m.up.Microseconds()) },
			false},
		"the same after hours without a use": {func(m *machine) { m.advanceClocks(5 * time.Hour) }, true},
	} {
		m := newMachine()
		m.up = time.Hour
		if strings.HasPrefix(what, "no battery") {
			c.change(m)
		}
		tab := m.inContainer("host").mustOpen(t)
		m.advanceClocks(time.Second)
		tab.clock.readBootClock = func() time.Duration { return m.up }
		last, state := clockOf(tab), tab.clock.offset
		_ = tab.Close()
		c.change(m)
		tab = m.inContainer("container").mustOpen(t)
		if same := tab.clock.offset == state; same != c.same {
			t.Errorf("%s: taken for the same boot: %t", what, same)
		}
		if clockOf(tab) < last {
			t.Errorf("%s: the clock fell by %d us", what, last-clockOf(tab))
		}
		_ = tab.Close()
	}
}
