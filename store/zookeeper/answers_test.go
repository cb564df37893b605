package zookeeper

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// TestLostAnswers: a claim whose request was taken and not answered, since the connection broke, stands once; and one that is
// given up then does not stand.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	var lose atomic.Bool
	s, err := New(Options{Servers: rig.Shared(t).Endpoints(), Dial: deaf(opCreate2, &lose)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other, _ := counting(t)
	ctx := t.Context()
	ses, err := s.tree.Open(ctx, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	stands := func(name string) int {
		l, err := other.Inspect(ctx, name)
		fails(t, err)
		return len(l.Holders) + len(l.Waiters)
	}
	lost := 0
	for i := range 10 {
		name := fmt.Sprint(t.Name(), "/", i)
		note := sequence.Note{ID: mutexClaim("").ID, Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ses.TTL}
		warm := note
		warm.ID = mutexClaim("").ID
		_, err := s.tree.Add(ctx, name, ses, int64(2*i), warm, sequence.Always)
		fails(t, err)
		lose.Store(true)
		_, err = s.tree.Add(ctx, name, ses, int64(2*i+1), note, sequence.Always)
		if err == nil {
			t.Error("the answer was not lost")
		}
		lost += stands(name) - 1
		if i%2 == 0 {
			look, err := s.tree.Add(ctx, name, ses, int64(2*i+1), note, sequence.Always)
			if err != nil || len(look.Nodes) != 2 || stands(name) != 2 {
				t.Errorf("asked for again, %d nodes stand: %v", stands(name), err)
			}
			continue
		}
		if _, err := s.tree.Withdraw(ctx, name, ses, int64(2*i+1), note.ID); err != nil {
			t.Error(err)
		}
		if n := stands(name); n != 1 {
			t.Errorf("withdrawn, %d nodes stand", n-1)
		}
	}
	t.Logf("%d of 10 requests without an answer were taken", lost)
	if lost == 0 {
		t.Error("none was taken")
	}
	fails(t, s.tree.End(ctx, ses.ID))
}

// TestLostAgain: so it does if the answer by which that is settled is lost, too; and its token is known.
func TestLostAgain(t *testing.T) {
	t.Parallel()
	var create, read atomic.Bool
	dial := deaf(opCreate2, &create)
	s, err := New(Options{Servers: rig.Shared(t).Endpoints(), Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := dial(ctx, network, address)
		return &deafConn{Conn: nc, op: opGetData, lose: &read}, err
	}})
	fails(t, err)
	defer s.Close()
	ctx := t.Context()
	ses, err := s.tree.Open(ctx, 20*time.Second)
	fails(t, err)
	note := aNote(ses.TTL)
	add := func() (sequence.Look, error) { return s.tree.Add(ctx, t.Name(), ses, 1, note, sequence.Always) }
	_, err = s.tree.Add(ctx, t.Name(), ses, 0, aNote(ses.TTL), sequence.Always)
	fails(t, err)
	for _, lost := range []*atomic.Bool{&create, &read} {
		lost.Store(true)
		if look, err := add(); err == nil {
			t.Errorf("the answer was not lost: %+v", look)
		}
	}
	added, err := add()
	fails(t, err)
	listed, err := s.tree.List(ctx, t.Name(), false)
	fails(t, err)
	for _, look := range []sequence.Look{added, listed} {
		if len(look.Nodes) != 2 || look.Nodes[1].ID != note.ID || look.Nodes[1].Token == 0 {
			t.Errorf("there stands %+v", look.Nodes)
		}
	}
	keys, _, err := admin(t, rig.Shared(t)).Children("/" + t.Name())
	if err != nil || len(keys) != 2 {
		t.Errorf("there stand %q, %v", keys, err)
	}
	fails(t, s.tree.End(ctx, ses.ID))
}

// TestPlainLostAnswers: so it is in the plain layout, and no ticket is left.
func TestPlainLostAnswers(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	var lose atomic.Bool
	s, err := NewPlain(Options{Servers: c.Endpoints(), Dial: deaf(opMulti, &lose), Namespace: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	ses, err := s.tree.Open(ctx, 20*time.Second)
	fails(t, err)
	note := sequence.Note{ID: mutexClaim("").ID, Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ses.TTL}
	look, err := s.tree.Add(ctx, "warm", ses, 0, note, sequence.Alone)
	if err != nil {
		t.Fatal(err)
	}
	cli := admin(t, c)
	taken := 0
	for i := range 10 {
		lose.Store(true)
		note.ID = mutexClaim("").ID
		if _, err := s.tree.Add(ctx, "lock", ses, int64(i), note, sequence.Alone); err == nil {
			t.Error("the answer was not lost")
		}
		if stands(t, cli, s.tree.pathOf("lock")) {
			taken++
		}
		if i%2 == 0 {
			look, err := s.tree.Add(ctx, "lock", ses, int64(i), note, sequence.Alone)
			if err != nil || len(look.Nodes) != 1 || look.Nodes[0].ID != note.ID {
				t.Errorf("asked for again: %+v, %v", look, err)
			}
		}
		if _, err := s.tree.Withdraw(ctx, "lock", ses, int64(i), note.ID); err != nil {
			t.Error(err)
		}
		if look, err := s.tree.List(ctx, "lock", true); err != nil || len(look.Nodes) != 0 {
			t.Errorf("withdrawn, there stands %+v, %v", look, err)
		}
	}
	t.Logf("%d of 10 requests without an answer were taken", taken)
	_, err = cli.Sync("/")
	fails(t, err)
	if left, _, err := cli.Children(s.tree.folder()); err != nil || len(left) != 1 || left[0] != look.Nodes[0].Key || taken == 0 {
		t.Errorf("the tickets that are left: %q, %v", left, err)
	}
	fails(t, s.tree.End(ctx, ses.ID))
}

// deaf makes connections that break once, when lose is set: a moment after one has sent a request of an operation. It hears
// nothing from then on.
func deaf(op uint32, lose *atomic.Bool) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &deafConn{Conn: nc, op: op, lose: lose}, err
	}
}

type deafConn struct {
	net.Conn
	op   uint32
	lose *atomic.Bool
	deaf atomic.Bool
}

func (d *deafConn) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	if d.deaf.Load() {
		return 0, io.EOF
	}
	return n, err
}

func (d *deafConn) Write(b []byte) (int, error) {
	lose := len(b) >= 12 && binary.BigEndian.Uint32(b[8:]) == d.op && d.lose.CompareAndSwap(true, false)
	if lose {
		d.deaf.Store(true)
	}
	n, err := d.Conn.Write(b)
	if lose {
		time.Sleep(30 * time.Millisecond)
		d.Conn.Close()
	}
	return n, err
}

// TestGoneBeforeDated: a claim whose node somebody removes before its token was read stands anew: with a token, and with nothing
// left over of the first.
func TestGoneBeforeDated(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := admin(t, c)
	for _, from := range []int{0, 1} { // both nodes of the claim, one
		name := fmt.Sprint(t.Name(), "/", from)
		var first []string
		remove := sync.OnceFunc(func() {
			_, err := cli.Sync("/" + name)
			fails(t, err)
			first, _, err = cli.Children("/" + name)
			fails(t, err)
			slices.SortFunc(first, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
			for _, key := range first[:2-from] {
				fails(t, cli.Delete("/"+name+"/"+key, -1))
			}
		})
		s, err := New(Options{Servers: c.Endpoints(), Layout: LayoutBoth, Dial: before(opExists, remove)})
		fails(t, err)
		claim := mutexClaim(name)
		claim.Wait = true
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		g, err := s.Acquire(ctx, claim)
		if err != nil || len(first) != 2 || g.Token <= 0 {
			t.Errorf("of %q %d were removed: token %d, %v", first, 2-from, g.Token, err)
		}
		now, _, err := cli.Children("/" + name)
		if err != nil || len(now) != 2 || slices.Contains(first, now[0]) || slices.Contains(first, now[1]) {
			t.Errorf("there stand %q, first it was %q, %v", now, first, err)
		}
		fails(t, s.Release(ctx, claim, ""))
		cancel()
		fails(t, s.Close())
	}
}

// before makes connections on which something is done before a request of an operation is sent.
func before(op uint32, do func()) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &beforeConn{nc, op, do}, err
	}
}

type beforeConn struct {
	net.Conn
	op uint32
	do func()
}

func (c *beforeConn) Write(b []byte) (int, error) {
	if len(b) >= 12 && binary.BigEndian.Uint32(b[8:]) == c.op {
		c.do()
	}
	return c.Conn.Write(b)
}
