package redis

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// startPair starts a primary and its replica, and returns when the replica follows.
func startPair(t *testing.T) (primary, replica *redistest.Server) {
	t.Helper()
	primary = startServer(t)
	replica = startServer(t)
	follow(t, replica, primary)
	return primary, replica
}

// follow makes a server a replica of another one, and returns when it is.
func follow(t *testing.T, replica, primary *redistest.Server) {
	t.Helper()
	sendCommand(t, replica, "REPLICAOF", "127.0.0.1", primary.Port)
	if err := redistest.Until(t.Context(), func() bool {
		info, err := primary.Do("INFO", "replication")
		return err == nil && strings.Contains(info, "state=online")
	}); err != nil {
		t.Fatal(err)
	}
}

// TestSplitBrain: a client with replicas=1 that stays connected to the old primary, which lives on without its replica,
// has lost its lock before a client of the new primary gets it.
func TestSplitBrain(t *testing.T) {
	t.Parallel()
	old, fresh := startPair(t)
	first := lockEventually(t, openClientForTest(t, "redis://"+old.Addr+"?replicas=1"), "m", 2*time.Second)
	// So does a Sentinel that does not see the old primary any more. The first client and the old primary are in the
	// other part of the network.
	sendCommand(t, fresh, "REPLICAOF", "NO", "ONE")
	second := lockEventually(t, openClientForTest(t, "redis://"+fresh.Addr), "m", longTTL)
	if first.Valid() {
		t.Errorf("both clients hold the lock")
	}
	if second.Token() <= first.Token() {
		t.Errorf("the token %d is not above %d", second.Token(), first.Token())
	}
}

// confirmedSteps are the steps that give a client more than it had.
type confirmedSteps struct {
	grants         []driver.Grant
	reader, writer driver.Grant
	detached       driver.Grant
}

// TestReplicasConfirmEachStep: with replicas=1, a renewal, a larger weight, a detached claim and a row of the ledger
// count only if the replica has them. What takes something away succeeds without it. Each step succeeds again when the
// replica is back. All renewals of one call wait for the replicas once.
func TestReplicasConfirmEachStep(t *testing.T) {
	t.Parallel()
	primary, replica := startPair(t)
	url := "redis://" + primary.Addr + "?replicas=1"
	s := openForTest(t, url, withReplicaTimeout(linkTimeout)).(*store)
	hasty := openForTest(t, url, withReplicaTimeout(time.Millisecond)).(*store) // for steps that fail
	steps := acquireSteps(t, s)
	rows, hastyRows := openRows(t, s), openRows(t, hasty)
	row, err := rows.Swap(t.Context(), record.Row{Name: "r", Data: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}

	renewed := func(s *store) (errs []error) {
		errs = make([]error, len(steps.grants))
		s.Renew(t.Context(), steps.grants, func(i int, r driver.Renewal) { errs[i] = r.Err })
		return errs
	}
	for range 2 { // the first time, the server may not know the scripts
		sendCommand(t, primary, "CONFIG", "RESETSTAT")
		for i, err := range renewed(s) {
			if err != nil {
				t.Errorf("the renewal of %s: %v", steps.grants[i].Name, err)
			}
		}
	}
	if by, scripts, _ := commandCalls(t, primary); by["wait"] != 1 || scripts != 4 {
		t.Errorf("%d renewals take %d scripts and wait %d times for the replicas, want 4 and once", len(steps.grants),
			scripts, by["wait"])
	}

	replica.Signal(syscall.SIGSTOP) // it stays connected, and WAIT counts it for a connection that has written nothing
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, driver.ErrUncertain) || errors.Is(err, driver.ErrLost) {
			t.Errorf("%s without a replica: %v", what, err)
		}
	}
	for i, err := range renewed(hasty) {
		refused("the renewal of "+steps.grants[i].Name, err)
	}
	refused("a detached claim", hasty.Detach(t.Context(), steps.detached, time.Minute))
	refused("a larger weight", hasty.SetWeight(t.Context(), steps.reader, driver.RWLimit))
	if err := hasty.SetWeight(t.Context(), steps.writer, 1); err != nil {
		t.Errorf("a smaller weight: %v", err)
	}
	// The engine reads a row to find out what became of a write: the row says that it was written.
	if _, err := hastyRows.Swap(t.Context(), record.Row{Name: "r", Version: row.Version, Data: []byte("2")}); err == nil ||
		errors.Is(err, record.ErrConflict) {
		t.Errorf("a row that no replica has: %v", err)
	}
	if r, err := hastyRows.Load(t.Context(), "r"); err == nil {
		t.Errorf("a row that no replica has is read: %q", r.Data)
	}
	// New connections have written nothing: they write the row as it is, since some servers count the replicas that
	// have the last write of a connection alone.
	rewrite, reread := openRows(t, openForTest(t, url, withReplicaTimeout(time.Millisecond)).(*store)),
		openRows(t, openForTest(t, url, withReplicaTimeout(time.Millisecond)).(*store)).(*table)
	sendCommand(t, primary, "CONFIG", "RESETSTAT")
	if _, err := rewrite.Swap(t.Context(), row); err == nil || errors.Is(err, record.ErrConflict) {
		t.Errorf("a row that was not replaced, and that no replica has: %v", err)
	}
	reread.unconfirmed.add("r")
	if r, err := reread.Load(t.Context(), "r"); err == nil {
		t.Errorf("a row that no replica has is read on a new connection: %q", r.Data)
	}
	if by, _, _ := commandCalls(t, primary); by["hset"] != 2 {
		t.Errorf("a refused write and a read of such a row write it %d times, want twice", by["hset"])
	}
	if _, err := hastyRows.Load(t.Context(), "other"); err != nil {
		t.Errorf("another row: %v", err)
	}

	replica.Signal(syscall.SIGCONT)
	hasty.opts.ReplicaTimeout = linkTimeout // nothing else uses it now
	for i, err := range renewed(hasty) {
		if err != nil {
			t.Errorf("the renewal of %s: %v", steps.grants[i].Name, err)
		}
	}
	if r, err := hastyRows.Load(t.Context(), "r"); err != nil || string(r.Data) != "2" {
		t.Errorf("the row: %q %v", r.Data, err)
	}
	if err := hasty.SetWeight(t.Context(), steps.reader, driver.RWLimit); err != nil {
		t.Errorf("a larger weight: %v", err)
	}
	if err := hasty.Detach(t.Context(), steps.detached, time.Minute); err != nil {
		t.Errorf("a detached claim: %v", err)
	}
	if n := len(hastyRows.(*table).unconfirmed.failures); n > 0 {
		t.Errorf("%d rows are remembered as unconfirmed", n)
	}
}

// acquireSteps acquires two batches of mutexes and a claim of each other kind.
func acquireSteps(t *testing.T, s *store) (steps confirmedSteps) {
	t.Helper()
	for i := range maxRenewBatch + 1 {
		steps.grants = append(steps.grants, acquire(t, s, mutex(fmt.Sprint("m", i), time.Minute)))
	}
	rw := func(name string, weight int64) driver.Grant {
		c := mutex(name, time.Minute)
		c.Kind, c.Limit, c.Weight = driver.KindRW, driver.RWLimit, weight
		return acquire(t, s, c)
	}
	steps.reader, steps.writer = rw("reader", 1), rw("writer", driver.RWLimit)
	steps.grants = append(steps.grants, steps.reader, steps.writer)
	steps.detached = acquire(t, s, mutex("detached", time.Minute))
	return steps
}

// openRows opens a table next to the locks.
func openRows(t *testing.T, s *store) record.Table {
	t.Helper()
	rows, err := s.openTable(t.Context(), rowPrefix)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestReplicasConfirmInCluster: with replicas=1, a renewal counts in a Cluster, too, only if a replica has it.
func TestReplicasConfirmInCluster(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Cluster(t.Context()))
	url := "redis+cluster://" + g.Servers[0].Addr
	grants := []driver.Grant{acquire(t, openForTest(t, url), mutex("a", time.Minute)),
		acquire(t, openForTest(t, url), mutex("b", time.Minute))}
	s := openForTest(t, url+"?replicas=1", withReplicaTimeout(time.Millisecond))
	s.Renew(t.Context(), grants, func(i int, r driver.Renewal) {
		if !errors.Is(r.Err, driver.ErrUncertain) {
			t.Errorf("the renewal of %s without a replica: %v", grants[i].Name, r.Err)
		}
	})
}

// TestManyUnconfirmedRows: if more rows are unconfirmed than can be remembered, all rows count as unconfirmed.
func TestManyUnconfirmedRows(t *testing.T) {
	t.Parallel()
	var u unconfirmedRows
	for i := range maxUnconfirmedRows + 10 {
		u.add(fmt.Sprint(i))
	}
	if _, found := u.find("other"); !found || len(u.failures) != maxUnconfirmedRows {
		t.Errorf("%d rows are remembered; another one is unconfirmed: %v", len(u.failures), found)
	}
	first, _ := u.find("0")
	u.add("0")
	u.remove("0", first) // confirmed by a request that began before the last one failed
	last, found := u.find("0")
	if !found || last == first {
		t.Errorf("the last failure of a row was forgotten")
	}
	u.remove("0", last)
	if _, found := u.failures["0"]; found {
		t.Errorf("a confirmed row is remembered")
	}
	if _, found := u.find(fmt.Sprint(maxUnconfirmedRows)); !found {
		t.Error("after one was confirmed, one that could not be remembered counts as confirmed")
	}
}
