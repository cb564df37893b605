package file

import (
	"testing"
	"time"
)

// in is the machine as a container sees it that has an id of the boot of its own.
func (m *machine) in(container string) *machine {
	return &machine{memDisk: m.memDisk, bootID: container, up: m.up, wall: m.wall}
}

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
	if host.Gone(one.Session()) || one.Gone(host.Session()) {
		t.Error("they take each other for gone")
	}
	_ = host.Close()
	two := m.in("two").mustOpen(t)
	if clockOf(two) != clockOf(one) {
		t.Error("two containers have different clocks when the host's client is gone")
	}
	m.up += 2 * time.Minute // past the floor
	for _, tab := range []*table{one, two} {
		tab.clock.boot = func() time.Duration { return m.up }
		if err := tab.clock.cover(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
	last := clockOf(two)
	_ = one.Close()
	_ = two.Close()
	three := m.in("three").mustOpen(t)
	if clockOf(three) <= last {
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
		if err := tab.clock.cover(t.Context(), tab.clock.floor.Load()+1); err != nil {
			t.Fatalf("before %q, %q at %d: %v", before, comes, at, err)
		}
	}
	return steps >= at
}
