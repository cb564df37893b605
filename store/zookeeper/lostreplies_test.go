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
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// TestLostAnswers: a claim whose request was carried out and not answered, since the connection broke, exists
// once; and one that is canceled then does not exist.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	var lose atomic.Bool
	s, err := openAs[*store](rig.Shared(t).Endpoints(), Options{Dial: newReplyLosingDialer(zk.OpCreate2, &lose, nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other, _ := newCountedStore(t)
	ctx := t.Context()
	ses, err := s.nodeStore.OpenSession(ctx, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	countClaims := func(name string) int {
		l, err := other.Inspect(ctx, name)
		mustSucceed(t, err)
		return len(l.Holders) + len(l.Waiters)
	}
	lost := 0
	for i := range 10 {
		name := fmt.Sprint(t.Name(), "/", i)
		payload := sequence.Payload{ID: mutexClaim("").ID, Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ses.TTL}
		warm := payload
		warm.ID = mutexClaim("").ID
		_, err := s.nodeStore.Add(ctx, name, ses, int64(2*i), warm, sequence.AddAlways)
		mustSucceed(t, err)
		lose.Store(true)
		_, err = s.nodeStore.Add(ctx, name, ses, int64(2*i+1), payload, sequence.AddAlways)
		if err == nil {
			t.Error("the answer was not lost")
		}
		lost += countClaims(name) - 1
		if i%2 == 0 {
			snapshot, err := s.nodeStore.Add(ctx, name, ses, int64(2*i+1), payload, sequence.AddAlways)
			if err != nil || len(snapshot.Nodes) != 2 || countClaims(name) != 2 {
				t.Errorf("asked for again, %d nodes exist: %v", countClaims(name), err)
			}
			continue
		}
		if _, err := s.nodeStore.Withdraw(ctx, name, ses, int64(2*i+1), payload.ID); err != nil {
			t.Error(err)
		}
		if n := countClaims(name); n != 1 {
			t.Errorf("withdrawn, %d nodes exist", n-1)
		}
	}
	if lost != 10 {
		t.Errorf("%d of 10 requests without an answer were taken", lost)
	}
	mustSucceed(t, s.nodeStore.EndSession(ctx, ses.ID))
}

// TestLostAnswerTwice: the claim exists once, too, if the answer that settles it is also lost; and its token is
// known.
func TestLostAnswerTwice(t *testing.T) {
	t.Parallel()
	var create, read atomic.Bool
	s, err := openAs[*store](rig.Shared(t).Endpoints(), Options{
		Dial: newReplyLosingDialer(zk.OpGetData, &read, newReplyLosingDialer(zk.OpCreate2, &create, nil))})
	mustSucceed(t, err)
	defer s.Close()
	ctx := t.Context()
	ses, err := s.nodeStore.OpenSession(ctx, 20*time.Second)
	mustSucceed(t, err)
	payload := newPayload(ses.TTL)
	add := func() (sequence.Snapshot, error) {
		return s.nodeStore.Add(ctx, t.Name(), ses, 1, payload, sequence.AddAlways)
	}
	_, err = s.nodeStore.Add(ctx, t.Name(), ses, 0, newPayload(ses.TTL), sequence.AddAlways)
	mustSucceed(t, err)
	for _, lost := range []*atomic.Bool{&create, &read} {
		lost.Store(true)
		if snapshot, err := add(); err == nil {
			t.Errorf("the answer was not lost: %+v", snapshot)
		}
	}
	added, err := add()
	mustSucceed(t, err)
	listed, err := s.nodeStore.List(ctx, t.Name(), false)
	mustSucceed(t, err)
	for _, snapshot := range []sequence.Snapshot{added, listed} {
		if len(snapshot.Nodes) != 2 || snapshot.Nodes[1].ID != payload.ID || snapshot.Nodes[1].Token == 0 {
			t.Errorf("there is %+v", snapshot.Nodes)
		}
	}
	keys, _, err := newAdmin(t, rig.Shared(t)).Children("/" + t.Name())
	if err != nil || len(keys) != 2 {
		t.Errorf("there are %q, %v", keys, err)
	}
	mustSucceed(t, s.nodeStore.EndSession(ctx, ses.ID))
}

// TestLostAnswerAmongMany: an add whose answer was lost is settled by reading two nodes, its own and the holder's,
// however many claims wait. Servers that have too much to do leave many adds without an answer at the same time.
func TestLostAnswerAmongMany(t *testing.T) {
	t.Parallel()
	var lose atomic.Bool
	c := &requestCounter{sent: map[int32]int{}}
	s, err := openAs[*store](rig.Shared(t).Endpoints(), Options{Dial: newReplyLosingDialer(zk.OpCreate2, &lose, c.dial)})
	mustSucceed(t, err)
	defer s.Close()
	ctx := t.Context()
	ses, err := s.nodeStore.OpenSession(ctx, 20*time.Second)
	mustSucceed(t, err)
	others, _, theirs := openCountedSession(t)
	const n = 20
	for i := range n {
		_, err := others.nodeStore.Add(ctx, t.Name(), theirs, int64(i), newPayload(theirs.TTL), sequence.AddAlways)
		mustSucceed(t, err)
	}
	payload := newPayload(ses.TTL)
	lose.Store(true)
	if _, err := s.nodeStore.Add(ctx, t.Name(), ses, 0, payload, sequence.AddAlways); err == nil {
		t.Fatal("the answer was not lost")
	}
	c.takeCounts()
	added, err := s.nodeStore.Add(ctx, t.Name(), ses, 0, payload, sequence.AddAlways)
	mustSucceed(t, err)
	if reads := c.takeCounts()[zk.OpGetData]; reads != 2 {
		t.Errorf("%d nodes were read", reads)
	}
	if l := added.Nodes; len(l) != n+1 || l[n].ID != payload.ID || l[n].Token == 0 || l[0].Token == 0 {
		t.Errorf("the claim and its holder are not both known: %+v", added.Nodes)
	}
	mustSucceed(t, s.nodeStore.EndSession(ctx, ses.ID))
}

// TestPlainLostAnswers: the same in the plain layout, and no ticket is left.
func TestPlainLostAnswers(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	var lose atomic.Bool
	s, err := openAs[*plainStore](c.Endpoints(), Options{Layout: LayoutPlain,
		Dial: newReplyLosingDialer(zk.OpMulti, &lose, nil), Namespace: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	ses, err := s.nodeStore.OpenSession(ctx, 20*time.Second)
	mustSucceed(t, err)
	payload := sequence.Payload{ID: mutexClaim("").ID, Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ses.TTL}
	snapshot, err := s.nodeStore.Add(ctx, "warm", ses, 0, payload, sequence.AddIfAlone)
	if err != nil {
		t.Fatal(err)
	}
	cli := newAdmin(t, c)
	taken := 0
	for i := range 10 {
		lose.Store(true)
		payload.ID = mutexClaim("").ID
		if _, err := s.nodeStore.Add(ctx, "lock", ses, int64(i), payload, sequence.AddIfAlone); err == nil {
			t.Error("the answer was not lost")
		}
		if nodeExists(t, cli, s.nodeStore.pathOf("lock")) {
			taken++
		}
		if i%2 == 0 {
			snapshot, err := s.nodeStore.Add(ctx, "lock", ses, int64(i), payload, sequence.AddIfAlone)
			if err != nil || len(snapshot.Nodes) != 1 || snapshot.Nodes[0].ID != payload.ID {
				t.Errorf("asked for again: %+v, %v", snapshot, err)
			}
		}
		if _, err := s.nodeStore.Withdraw(ctx, "lock", ses, int64(i), payload.ID); err != nil {
			t.Error(err)
		}
		if snapshot, err := s.nodeStore.List(ctx, "lock", true); err != nil || len(snapshot.Nodes) != 0 {
			t.Errorf("withdrawn, there is %+v, %v", snapshot, err)
		}
	}
	catchUp(t, cli)
	left, _, err := cli.Children(s.nodeStore.root)
	left = slices.DeleteFunc(left, func(key string) bool { return !strings.HasPrefix("/"+key, ticketPrefix) })
	if err != nil || len(left) != 1 || "/"+left[0] != ticketPrefix+snapshot.Nodes[0].Key || taken != 10 {
		t.Errorf("of 10 requests without an answer %d were taken, and the tickets that are left are %q, %v",
			taken, left, err)
	}
	mustSucceed(t, s.nodeStore.EndSession(ctx, ses.ID))
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// requests follow what a connection writes: its handshake, then whole requests, perhaps several at a time.
type requests struct{ greeted bool }

// findRequest returns the number of a request of an operation that contains these words, among those in b.
func (r *requests) findRequest(b []byte, op uint32, words string) (xid uint32, found bool) {
	if !r.greeted {
		r.greeted = true
		return 0, false
	}
	for len(b) >= 12 {
		end := 4 + int(binary.BigEndian.Uint32(b))
		if binary.BigEndian.Uint32(b[8:]) == op && strings.Contains(string(b[:end]), words) {
			return binary.BigEndian.Uint32(b[4:]), true
		}
		b = b[end:]
	}
	return 0, false
}

// newReplyLosingDialer makes connections that break once, when lose is set: when the answer to a request of an
// operation has come, which is dropped, as is anything else that comes after that was sent.
func newReplyLosingDialer(op uint32, lose *atomic.Bool, dial dialer) dialer {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := dial(ctx, network, address)
		return &replyLosingConn{Conn: nc, op: op, lose: lose}, err
	}
}

type replyLosingConn struct {
	net.Conn
	op    uint32
	lose  *atomic.Bool
	sent  requests
	in    []byte        // the beginning of an answer
	waits atomic.Uint64 // 0, or the number of the request and 1<<32
}

func (d *replyLosingConn) Read(b []byte) (int, error) {
	for {
		n, err := d.Conn.Read(b)
		waits := d.waits.Load()
		d.in = append(d.in, b[:n]...)
		for len(d.in) >= 8 && len(d.in) >= 4+int(binary.BigEndian.Uint32(d.in)) {
			if uint64(binary.BigEndian.Uint32(d.in[4:]))|1<<32 == waits {
				d.Conn.Close()
				return 0, io.EOF
			}
			d.in = d.in[4+binary.BigEndian.Uint32(d.in):]
		}
		if waits == 0 || err != nil {
			return n, err
		}
	}
}

func (d *replyLosingConn) Write(b []byte) (int, error) {
	if xid, ok := d.sent.findRequest(b, d.op, ""); ok && d.lose.CompareAndSwap(true, false) {
		d.waits.Store(uint64(xid) | 1<<32)
	}
	return d.Conn.Write(b)
}

// TestReleaseRemovesBothNodes: where a request without an answer is carried out after its claim was looked for and
// added again, the release removes both nodes.
func TestReleaseRemovesBothNodes(t *testing.T) {
	t.Parallel()
	name := t.Name()
	var broke atomic.Bool
	s, err := openAs[*store](rig.Shared(t).Endpoints(), Options{
		Dial: newInterceptingDialer(zk.OpCreate2, name, func(nc net.Conn) {
			if broke.CompareAndSwap(false, true) {
				nc.Close()
			}
		}, nil)})
	mustSucceed(t, err)
	defer s.Close()
	for _, release := range []func(n sequence.Node) (bool, sequence.Snapshot, error){
		func(n sequence.Node) (bool, sequence.Snapshot, error) {
			return s.nodeStore.Remove(t.Context(), name, n, sequence.Then{Next: n.Key})
		},
		func(n sequence.Node) (bool, sequence.Snapshot, error) {
			return s.nodeStore.Remove(t.Context(), name, sequence.Node{Key: n.Key, Token: n.Token}, sequence.Then{List: true})
		},
	} {
		ses, err := s.nodeStore.OpenSession(t.Context(), time.Minute)
		mustSucceed(t, err)
		path, warm := s.nodeStore.pathOf(name), newPayload(ses.TTL)
		_, err = s.nodeStore.Add(t.Context(), name+"/warm", ses, 0, warm, sequence.AddAlways)
		for err != nil {
			_, err = s.nodeStore.Add(t.Context(), name+"/warm", ses, 0, warm, sequence.AddAlways)
		}
		payload := newPayload(ses.TTL)
		broke.Store(false)
		if _, err := s.nodeStore.Add(t.Context(), name, ses, 1, payload, sequence.AddAlways); err == nil {
			t.Error("the request was not lost")
		}
		snapshot, err := s.nodeStore.Add(t.Context(), name, ses, 1, payload, sequence.AddAlways)
		if err != nil || len(snapshot.Nodes) != 1 {
			t.Fatalf("%+v, %v", snapshot, err)
		}
		c, err := s.nodeStore.sessionConn(ses.ID)
		mustSucceed(t, err)
		late := zk.CreateSequential(path+"/"+joinEnding(formatStem(ses.ID, payload), endLock), nil, s.nodeStore.acl)
		if err := c.Do(t.Context(), late); err != nil || late.Err != nil {
			t.Fatal(err, late.Err)
		}
		if existed, _, err := release(snapshot.Nodes[0]); err != nil || !existed {
			t.Errorf("removed: %v, %v", existed, err)
		}
		if left, err := s.nodeStore.List(t.Context(), name, true); err != nil || len(left.Nodes) > 0 {
			t.Errorf("released, there is %+v, %v", left.Nodes, err)
		}
		mustSucceed(t, s.nodeStore.EndSession(t.Context(), ses.ID))
	}
}

// TestRemovedBeforeTokenRead: a claim whose node somebody removes before its token was read is added again: with a
// token, and with nothing left over of the first, also where what is left of that cannot be removed at once.
func TestRemovedBeforeTokenRead(t *testing.T) {
	t.Parallel()
	// another one might not have heard of the removal when the token is read there
	server := rig.Shared(t).Endpoints()[:1]
	cli := newAdminAt(t, server)
	for _, k := range []struct {
		gone   int  // how many of the claim's two nodes
		broken bool // the connection breaks when the other one is to be removed
	}{{2, false}, {1, false}, {1, true}} {
		name := fmt.Sprint(t.Name(), "/", k.gone, k.broken)
		var first []string
		remove := sync.OnceFunc(func() {
			catchUp(t, cli)
			var err error
			first, _, err = cli.Children("/" + name)
			mustSucceed(t, err)
			slices.SortFunc(first, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
			for _, key := range first[:k.gone] {
				mustSucceed(t, cli.Delete("/"+name+"/"+key, -1))
			}
		})
		var broke atomic.Bool
		dial := newInterceptingDialer(zk.OpExists, name, func(net.Conn) { remove() }, nil)
		if k.broken {
			dial = newInterceptingDialer(zk.OpDelete, endKazoo, func(nc net.Conn) {
				if broke.CompareAndSwap(false, true) {
					nc.Close()
				}
			}, dial)
		}
		s, err := openAs[*store](server, Options{Layout: LayoutBoth, Dial: dial})
		mustSucceed(t, err)
		claim := mutexClaim(name)
		claim.Wait = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		g, err := s.Acquire(ctx, claim)
		if err != nil || len(first) != 2 || broke.Load() != k.broken || g.Token <= 0 {
			t.Errorf("of %q %d were removed: token %d, %v", first, k.gone, g.Token, err)
		}
		catchUp(t, cli)
		now, _, err := cli.Children("/" + name)
		if err != nil || len(now) != 2 || slices.Contains(first, now[0]) || slices.Contains(first, now[1]) {
			t.Errorf("there are %q, first it was %q, %v", now, first, err)
		}
		mustSucceed(t, s.Release(ctx, claim, ""))
		cancel()
		mustSucceed(t, s.Close())
	}
}

// newInterceptingDialer makes connections on which something is done before a request of an operation, in which
// these words are, is sent.
func newInterceptingDialer(op uint32, words string, do func(net.Conn), dial dialer) dialer {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := dial(ctx, network, address)
		return &interceptingConn{Conn: nc, op: op, words: words, do: do}, err
	}
}

type interceptingConn struct {
	net.Conn
	op    uint32
	words string
	do    func(net.Conn)
	sent  requests
}

func (c *interceptingConn) Write(b []byte) (int, error) {
	if _, ok := c.sent.findRequest(b, c.op, c.words); ok {
		c.do(c.Conn)
	}
	return c.Conn.Write(b)
}

// TestCloseSessionLost: a session is closed although a server has lost the request: another server is asked.
func TestCloseSessionLost(t *testing.T) {
	t.Parallel()
	var lost atomic.Bool
	s, err := openAs[*store](rig.Shared(t).Endpoints(), Options{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			nc, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &closeLoser{nc, &lost}, err
		},
	})
	mustSucceed(t, err)
	t.Cleanup(func() { s.Close() })
	ctx := t.Context()
	ses, err := s.nodeStore.OpenSession(ctx, time.Minute)
	mustSucceed(t, err)
	_, err = s.nodeStore.Add(ctx, "closed", ses, 0, newPayload(ses.TTL), sequence.AddAlways)
	mustSucceed(t, err)
	began := time.Now()
	mustSucceed(t, s.nodeStore.EndSession(ctx, ses.ID))
	if took := time.Since(began); took > ses.TTL/2 {
		t.Errorf("the session was closed after %v", took)
	}
	if !lost.Load() {
		t.Error("no request was lost")
	}
	snapshot, err := s.nodeStore.List(ctx, "closed", true)
	if err != nil || len(snapshot.Nodes) > 0 {
		t.Errorf("the session is closed, and its nodes are %+v, %v", snapshot.Nodes, err)
	}
}

// closeLoser is a connection on which the first request to close a session, of all connections that share lost, never
// arrives.
type closeLoser struct {
	net.Conn
	lost *atomic.Bool
}

func (n *closeLoser) Write(b []byte) (int, error) {
	const frameLength, xidLength = 4, 4
	isClose := len(b) == frameLength+xidLength+4 && int32(binary.BigEndian.Uint32(b[frameLength+xidLength:])) == zk.OpCloseSession
	if isClose && n.lost.CompareAndSwap(false, true) {
		return len(b), nil
	}
	return n.Conn.Write(b)
}
