package zookeeper

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	gozk "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// openRuns opens a ledger in a namespace: as it is now, or as earlier programs keep it.
func openRuns(t *testing.T, servers []string, namespace string, old bool) driver.Ledger {
	t.Helper()
	s, err := openAs[*store](servers, Options{Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if !old {
		return storetest.OpenLedger(t, s)
	}
	tb := newTable(s.nodeStore, oldFolder)
	tb.keepMarks()
	l := record.NewLedger(tb)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func failRun(t *testing.T, l driver.Ledger, g driver.Grant) {
	t.Helper()
	if err := l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed, Error: "no"}); err != nil {
		t.Fatal(err)
	}
}

// TestOldLedger: the keys of earlier programs are read and run where they are, and these programs see it. From the
// first new key on, they can begin no run of a key that they do not find, and so run nothing that has been run below
// the new nodes.
func TestOldLedger(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	namespace := "runs" + strings.ToLower(rand.Text())
	l, old := openRuns(t, c.Endpoints(), namespace, false), openRuns(t, c.Endpoints(), namespace, true)
	failRun(t, old, storetest.Acquire(t, old, storetest.NewRun("failed")))
	running := storetest.Acquire(t, old, storetest.NewRun("running"))
	lastState := func(l driver.Ledger, key string) string {
		t.Helper()
		h, err := l.ReadRuns(t.Context(), key, 0)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, r := range h.Runs {
			text += fmt.Sprintf("%d:%s ", r.Attempt, r.State)
		}
		return text
	}
	expect := func(l driver.Ledger, key, want string) {
		t.Helper()
		if got := lastState(l, key); got != want {
			t.Errorf("the runs of %s are %q, want %q", key, got, want)
		}
	}
	expect(l, "failed", "1:failed ")
	expect(l, "running", "1:started ")
	if _, err := l.Acquire(t.Context(), storetest.NewRun("running")); !errors.Is(err, driver.ErrInProgress) {
		t.Errorf("a key that is running: %v", err)
	}
	again := storetest.Acquire(t, l, storetest.NewRun("failed"))
	if _, err := old.Acquire(t.Context(), storetest.NewRun("failed")); !errors.Is(err, driver.ErrInProgress) {
		t.Errorf("a key that is running: %v", err) // nothing is closed before there is a new key
	}
	storetest.CheckFinish(t, l, again)
	expect(old, "failed", "1:failed 2:succeeded ")

	storetest.CheckFinish(t, l, storetest.Acquire(t, l, storetest.NewRun("new")))
	for _, key := range []string{"new", "another", "failed"} {
		if g, err := old.Acquire(t.Context(), storetest.NewRun(key)); !errors.Is(err, driver.ErrDenied) {
			t.Errorf("an earlier program begins %s: %+v, %v", key, g, err)
		}
	}
	storetest.CheckFinish(t, old, running)
	expect(l, "running", "1:succeeded ")
	later := openRuns(t, c.Endpoints(), namespace, false)
	for _, key := range []string{"failed", "running", "new"} {
		if _, err := later.Acquire(t.Context(), storetest.NewRun(key)); !errors.Is(err, driver.ErrSucceeded) {
			t.Errorf("%s is run again: %v", key, err)
		}
	}
	storetest.CheckFinish(t, later, storetest.Acquire(t, later, storetest.NewRun("another")))
	listed := map[string]int{}
	for h, err := range later.ListRuns(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		listed[h.Key]++
	}
	if want := map[string]int{"failed": 1, "running": 1, "new": 1, "another": 1}; fmt.Sprint(listed) != fmt.Sprint(want) {
		t.Errorf("listed are %v, want %v", listed, want)
	}
	if err := later.ForgetRuns(t.Context(), "failed"); err != nil {
		t.Fatal(err)
	}
	expect(l, "failed", "")
	storetest.CheckFinish(t, l, storetest.Acquire(t, l, storetest.NewRun("failed")))
	expect(later, "failed", "1:succeeded ")
}

// TestLedgerIsSpread: the records are spread over many nodes. A ledger that is used for the first time leaves nothing
// open to earlier programs.
func TestLedgerIsSpread(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	namespace := "runs" + strings.ToLower(rand.Text())
	l := openRuns(t, c.Endpoints(), namespace, false)
	const keys = 60
	for i := range keys {
		storetest.CheckFinish(t, l, storetest.Acquire(t, l, storetest.NewRun(fmt.Sprint("key/", i))))
	}
	cli := newAdmin(t, c)
	catchUp(t, cli)
	used, most := 0, int32(0)
	for i := range folders {
		_, stat, err := cli.Get(fmt.Sprintf("/%s/%%ledger/%02x", namespace, i))
		if err != nil {
			t.Fatal(err)
		}
		used, most = used+min(1, int(stat.NumChildren)), max(most, stat.NumChildren)
	}
	if used < keys/3 || most > keys/5 {
		t.Errorf("%d records are below %d of %d nodes, the most below one being %d", keys, used, folders, most)
	}
	if names, _, err := cli.Children("/" + namespace + "/%runs"); err != nil || len(names) != 0 {
		t.Errorf("below the node of earlier programs is %q, %v", names, err)
	}
	if _, err := cli.Create("/"+namespace+"/%runs/x", nil, 0, gozk.WorldACL(gozk.PermAll)); err != gozk.ErrNoAuth {
		t.Errorf("an earlier program can make a record: %v", err)
	}
	n := 0
	for _, err := range l.ListRuns(t.Context(), "key/1") {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 11 {
		t.Errorf("%d keys are listed", n)
	}
}

// TestOldLedgerNotClosed: if earlier programs cannot be kept out, no new key is run, and the error says what to do.
func TestOldLedgerNotClosed(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	namespace := "runs" + strings.ToLower(rand.Text())
	cli := newAdmin(t, c)
	for _, path := range []string{"", "/%runs"} {
		acl := gozk.WorldACL(gozk.PermRead | gozk.PermWrite | gozk.PermCreate | gozk.PermDelete)
		_, err := cli.Create("/"+namespace+path, nil, 0, acl)
		mustSucceed(t, err)
	}
	l, old := openRuns(t, c.Endpoints(), namespace, false), openRuns(t, c.Endpoints(), namespace, true)
	failRun(t, old, storetest.Acquire(t, old, storetest.NewRun("old")))
	_, err := l.Acquire(t.Context(), storetest.NewRun("new"))
	if !errors.Is(err, driver.ErrDenied) || errors.Is(err, driver.ErrUncertain) ||
		!strings.Contains(err.Error(), "permission to create") {
		t.Errorf("a new key: %v", err)
	}
	storetest.CheckFinish(t, l, storetest.Acquire(t, l, storetest.NewRun("old")))
}

// TestOldLedgerClosedByOthers: clients that close the node of earlier programs at the same time all begin their runs,
// whichever steps of the others come between the steps of one.
func TestOldLedgerClosedByOthers(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	closeFolder := func(path string, perms int32) {
		catchUp(t, cli)
		if _, err := cli.Create(path+"/"+keeperName, nil, 0, gozk.WorldACL(gozk.PermAll)); err != gozk.ErrNodeExists {
			mustSucceed(t, err)
		}
		_, err := cli.SetACL(path, gozk.WorldACL(perms), -1)
		mustSucceed(t, err)
		for err == nil { // until the leader obeys it
			if _, err = cli.Create(path+"/x", nil, 0, gozk.WorldACL(gozk.PermAll)); err == nil {
				mustSucceed(t, cli.Delete(path+"/x", -1))
			}
		}
		if err != gozk.ErrNoAuth {
			t.Error(err)
		}
	}
	for _, step := range []struct {
		op    uint32
		words string
		perms int32 // that are left
	}{
		{zk.OpCreate, keeperName, gozk.PermAll &^ gozk.PermCreate},
		{zk.OpSetACL, oldFolder, gozk.PermRead | gozk.PermWrite | gozk.PermDelete},
	} {
		namespace := "runs" + strings.ToLower(rand.Text())
		old := openRuns(t, c.Endpoints(), namespace, true)
		failRun(t, old, storetest.Acquire(t, old, storetest.NewRun("old")))
		var closes sync.Once
		s, err := openAs[*store](c.Endpoints(), Options{Namespace: namespace,
			Dial: newInterceptingDialer(step.op, step.words, func(net.Conn) {
				closes.Do(func() { closeFolder("/"+namespace+"/"+oldFolder, step.perms) })
			}, nil)})
		mustSucceed(t, err)
		t.Cleanup(func() { _ = s.Close() })
		l := storetest.OpenLedger(t, s)
		storetest.CheckFinish(t, l, storetest.Acquire(t, l, storetest.NewRun("new")))
		closes.Do(func() { t.Errorf("no step of the other client came before operation %d", step.op) })
	}
	namespace := "runs" + strings.ToLower(rand.Text())
	old := openRuns(t, c.Endpoints(), namespace, true)
	failRun(t, old, storetest.Acquire(t, old, storetest.NewRun("old")))
	var begins sync.WaitGroup
	for i := range 8 {
		l := openRuns(t, c.Endpoints(), namespace, false)
		_, err := l.ReadRuns(t.Context(), "x", 0) // it is connected
		mustSucceed(t, err)
		begins.Go(func() {
			if _, err := l.Acquire(t.Context(), storetest.NewRun(fmt.Sprint("new", i))); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	begins.Wait()
}

// TestOldLedgerOfOthers: if this user may not create nodes below the node of earlier programs, and another one may,
// that node is not closed: no new key is run, and the error says what to do.
func TestOldLedgerOfOthers(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	mustSucceed(t, cli.AddAuth("digest", []byte("old:secret")))
	for _, public := range [][]gozk.ACL{gozk.WorldACL(gozk.PermRead), nil} {
		namespace := "runs" + strings.ToLower(rand.Text())
		_, err := cli.Create("/"+namespace, nil, 0, gozk.WorldACL(gozk.PermAll))
		mustSucceed(t, err)
		acl := append(slices.Clone(public), gozk.DigestACL(gozk.PermAll, "old", "secret")...)
		_, err = cli.Create("/"+namespace+"/%runs", nil, 0, acl)
		mustSucceed(t, err)
		l := openRuns(t, c.Endpoints(), namespace, false)
		if g, err := l.Acquire(t.Context(), storetest.NewRun("new")); !errors.Is(err, driver.ErrDenied) ||
			!strings.Contains(err.Error(), "permission to create") {
			t.Errorf("a new key: token %d, %v", g.Token, err)
		}
	}
}

// TestOldFolderStaysClosed: the node of earlier programs, which the servers would remove with its last child, keeps
// one when it is closed.
func TestOldFolderStaysClosed(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	namespace := "runs" + strings.ToLower(rand.Text())
	l, old := openRuns(t, c.Endpoints(), namespace, false), openRuns(t, c.Endpoints(), namespace, true)
	failRun(t, old, storetest.Acquire(t, old, storetest.NewRun("old")))
	storetest.CheckFinish(t, l, storetest.Acquire(t, l, storetest.NewRun("new")))
	tb := newTable(openStoreTree(t, c.Endpoints(), namespace), oldFolder)
	for row, err := range tb.List(t.Context(), "", "") {
		if err == nil {
			err = tb.Delete(t.Context(), row)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	calls, err := tb.readBounded(t.Context(), true, func() []*zk.Call {
		return []*zk.Call{zk.GetChildren("/" + namespace + "/%runs")}
	})
	if err != nil {
		t.Fatal(err)
	}
	if names, _, err := calls[0].Children(); err != nil || len(names) != 1 || names[0] != keeperName {
		t.Errorf("the node has the children %q, %v", names, err)
	}
}

func openStoreTree(t *testing.T, servers []string, namespace string) *nodeStore {
	t.Helper()
	s, err := openAs[*store](servers, Options{Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.nodeStore
}

// TestLedgerWithoutPermissions: on servers that check no permissions, a ledger that no earlier program has used
// works. One that an earlier program may be using is refused, with what to do. What earlier programs run later is
// seen, also by clients that come when the new nodes exist.
func TestLedgerWithoutPermissions(t *testing.T) {
	t.Parallel()
	c := startEnsemble(t, zktest.Options{Members: 1, Direct: true, Args: []string{"-Dzookeeper.skipACL=yes"}})
	l, old := openRuns(t, c.Endpoints(), "fresh", false), openRuns(t, c.Endpoints(), "used", true)
	storetest.CheckFinish(t, l, storetest.Acquire(t, l, storetest.NewRun("new")))
	early := openRuns(t, c.Endpoints(), "fresh", true)
	for i, l := range []driver.Ledger{l, openRuns(t, c.Endpoints(), "fresh", false)} {
		key := fmt.Sprint("early", i)
		storetest.CheckFinish(t, l, storetest.Acquire(t, l, storetest.NewRun(key+"/new")))
		storetest.CheckFinish(t, early, storetest.Acquire(t, early, storetest.NewRun(key)))
		if _, err := l.Acquire(t.Context(), storetest.NewRun(key)); !errors.Is(err, driver.ErrSucceeded) {
			t.Errorf("a key that an earlier program has run since: %v", err)
		}
	}
	storetest.CheckFinish(t, old, storetest.Acquire(t, old, storetest.NewRun("old")))
	used := openRuns(t, c.Endpoints(), "used", false)
	if _, err := used.Acquire(t.Context(), storetest.NewRun("old")); !errors.Is(err, driver.ErrSucceeded) {
		t.Errorf("a key of before: %v", err)
	}
	_, err := used.Acquire(t.Context(), storetest.NewRun("new"))
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "end these programs") {
		t.Errorf("a new key: %v", err)
	}
}
