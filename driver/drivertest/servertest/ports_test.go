package servertest

import (
	"strconv"
	"testing"
)

// TestFreePort: a port that was given to one process is given to no other one, even while nobody listens on it. The
// same process gets it again only when it has got all others. A port that somebody listens on is not given out.
func TestFreePort(t *testing.T) {
	ours := portRange{first: 12000, end: 15000}
	defer ours.freePorts()
	port, err := ours.reservePort()
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(port)
	if next, err := ours.reservePort(); err != nil || next == port {
		t.Errorf("%q after %q, %v", next, port, err)
	}
	other := portRange{first: n, end: n + 1}
	if port, err := other.reservePort(); err == nil {
		t.Errorf("%s was given twice", port)
	}
	own := portRange{first: n, end: n + 1, reserved: ours.reserved}
	if again, err := own.reservePort(); again != port || err != nil {
		t.Errorf("%q, %v", again, err)
	}
	l, err := own.listenOnNext()
	if err != nil {
		t.Fatal(err)
	}
	if port, err := own.reservePort(); err == nil {
		t.Errorf("%s was given while somebody listens", port)
	}
	l.Close()
	ours.freePorts()
	defer other.freePorts()
	if again, err := other.reservePort(); again != port || err != nil {
		t.Errorf("when the first process has ended: %q, %v", again, err)
	}
}

// freePorts does what the end of a process does.
func (p *portRange) freePorts() {
	for port, mark := range p.reserved {
		_ = mark.Close()
		delete(p.reserved, port)
	}
}
