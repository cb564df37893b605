package freeport

import (
	"strconv"
	"testing"
)

// TestPort: a port that one process was given is given to no other one, also while nobody listens on it, and to itself again only
// when it has gone through all. One on which somebody listens is given to nobody.
func TestPort(t *testing.T) {
	ours := ports{first: 12000, end: 15000}
	defer ours.free()
	port, err := ours.reserve()
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(port)
	if next, err := ours.reserve(); err != nil || next == port {
		t.Errorf("%q after %q, %v", next, port, err)
	}
	other := ports{first: n, end: n + 1}
	if port, err := other.reserve(); err == nil {
		t.Errorf("%s was given twice", port)
	}
	own := ports{first: n, end: n + 1, reserved: ours.reserved}
	if again, err := own.reserve(); again != port || err != nil {
		t.Errorf("%q, %v", again, err)
	}
	l, err := own.listen()
	if err != nil {
		t.Fatal(err)
	}
	if port, err := own.reserve(); err == nil {
		t.Errorf("%s was given while somebody listens", port)
	}
	l.Close()
	ours.free()
	defer other.free()
	if again, err := other.reserve(); again != port || err != nil {
		t.Errorf("when the first process has ended: %q, %v", again, err)
	}
}

// free is what the end of a process does.
func (p *ports) free() {
	for port, mark := range p.reserved {
		_ = mark.Close()
		delete(p.reserved, port)
	}
}
