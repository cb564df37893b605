package file

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// clientRun is what a client did until it died, as far as its writes were confirmed.
type clientRun struct {
	m          *machine
	tab        *table
	token      int64             // the largest that was handed out
	confirmed  map[string]string // data of each record, as last confirmed
	durable    map[string]bool   // whether the last confirmed is on the disk
	unanswered map[string]string // what an unanswered write was to make of a record
	rows       map[string]record.Row
}

const noRecord = "(none)"

func (s *clientRun) write(name, data string, durable bool) error {
	row := s.rows[name]
	row.Name, row.Data, row.Durable = name, []byte(data), durable
	now := s.tab.TokenFloor()
	row.Token = max(row.Token+1, now)
	s.unanswered[name] = data
	row, err := s.tab.Swap(context.Background(), row)
	if err != nil {
		return err
	}
	delete(s.unanswered, name)
	s.rows[name], s.confirmed[name], s.durable[name] = row, data, durable
	s.token = max(s.token, row.Token)
	return nil
}

func (s *clientRun) delete(name string) error {
	s.unanswered[name] = noRecord
	if err := s.tab.Delete(context.Background(), s.rows[name]); err != nil {
		return err
	}
	delete(s.unanswered, name)
	delete(s.rows, name)
	s.confirmed[name], s.durable[name] = noRecord, false
	return nil
}

// runAll does everything that a store can do, and stops at the first error.
func (s *clientRun) runAll(p *proc) (err error) {
	if s.tab, err = s.m.open(p); err != nil {
		return err
	}
	steps := []func() error{}
	for i := range 3*removeEvery + 2 {
		steps = append(steps, func() error { return s.write("plain", "p"+strconv.Itoa(i), false) })
	}
	for i := range removeEvery + 2 {
		steps = append(steps, func() error { return s.write("detached", "d"+strconv.Itoa(i), true) })
	}
	steps = append(steps,
		func() error { return s.delete("plain") },
		func() error { s.m.up += 2 * time.Minute; return s.write("plain", "again", false) }, // past the floor
		func() error { return s.write("plain", "detached by now", true) },
		// So long that a torn file has lost a part of it, although files have at least one block.
		func() error { return s.write("detached", strings.Repeat("released by now ", 200), false) },
		func() error { return s.tab.Close() },
	)
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func newClientRun() *clientRun {
	return &clientRun{m: newMachine(), confirmed: map[string]string{"plain": noRecord, "detached": noRecord},
		durable:    map[string]bool{},
		unanswered: map[string]string{}, rows: map[string]record.Row{}}
}

func mustLoad(t *testing.T, tab *table, name string) record.Row {
	t.Helper()
	row, err := tab.Load(t.Context(), name)
	if err != nil {
		t.Fatalf("load %s: %v", name, err)
	}
	return row
}

func dataOf(row record.Row) string {
	if row.Version == "" {
		return noRecord
	}
	return string(row.Data)
}

// eachDeath runs a client that dies at its first operation, then one that dies at its second, and so on.
func eachDeath(t *testing.T, then func(t *testing.T, s *clientRun)) {
	for k := 1; ; k++ {
		s := newClientRun()
		p := s.m.process()
		p.dieAt = k
		err := s.runAll(p)
		p.endProcess()
		if t.Run(fmt.Sprintf("operation %d", k), func(t *testing.T) { then(t, s) }); t.Failed() {
			return
		}
		if err == nil && p.steps < k {
			t.Logf("%d operations", k-1)
			return
		}
	}
}

// TestPowerCut: after a power cut at any file operation, with any damage, new tokens are larger than all tokens that
// were handed out, every lock can be used, and what was confirmed as durable exists.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	eachDeath(t, func(t *testing.T, s *clientRun) {
		for i, how := range []damage{kept, lost, torn1, empty, random, random, random, random, random, random} {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			m := s.m.reboot(how, r)
			tab := m.mustOpen(t)
			if now := tab.TokenFloor(); now <= s.token {
				t.Fatalf("%s: the clock is at %d, a token of %d was handed out", how, now, s.token)
			}
			for name, want := range s.confirmed {
				row := mustLoad(t, tab, name)
				if have := dataOf(row); s.durable[name] && have != want && have != s.unanswered[name] {
					t.Fatalf("%s: %s is %q, durable was %q, unanswered %q", how, name, have, want, s.unanswered[name])
				}
				row.Data, row.Token = []byte("goes on"), s.token+1
				if _, err := tab.Swap(t.Context(), row); err != nil {
					t.Fatalf("%s: %s cannot be written: %v", how, name, err)
				}
			}
		}
	})
}

// TestPowerCutInRepair: the power fails again at any operation of the first opening after a power cut.
func TestPowerCutInRepair(t *testing.T) {
	t.Parallel()
	s := newClientRun()
	p := s.m.process()
	if err := s.runAll(p); err != nil {
		t.Fatal(err)
	}
	for _, how := range []damage{torn1, empty, random} {
		for k := 1; ; k++ {
			r := rand.New(rand.NewPCG(uint64(k), 2))
			m := s.m.reboot(how, r)
			p := m.process()
			p.dieAt = k
			_, err := m.open(p)
			tab := m.reboot(how, r).mustOpen(t)
			if now := tab.TokenFloor(); now <= s.token {
				t.Fatalf("%s at %d: the clock is at %d, a token of %d was handed out", how, k, now, s.token)
			}
			if have := dataOf(mustLoad(t, tab, "plain")); have != "detached by now" {
				t.Fatalf("%s at %d: durable data are now %q", how, k, have)
			}
			mustLoad(t, tab, "detached")
			if err == nil {
				break
			}
		}
	}
}

// TestCrash: a process that dies at any file operation loses nothing that was confirmed, counts as dead, and blocks
// no other client.
func TestCrash(t *testing.T) {
	t.Parallel()
	eachDeath(t, func(t *testing.T, s *clientRun) {
		tab := s.m.mustOpen(t)
		if s.tab != nil && !tab.IsDead(s.tab.Session()) {
			t.Fatal("the dead client is taken for alive")
		}
		for name, want := range s.confirmed {
			row := mustLoad(t, tab, name)
			if have := dataOf(row); have != want && have != s.unanswered[name] {
				t.Fatalf("%s is %q, confirmed was %q, unanswered %q", name, have, want, s.unanswered[name])
			}
			row.Data = []byte("goes on")
			if _, err := tab.Swap(t.Context(), row); err != nil {
				t.Fatalf("%s cannot be written: %v", name, err)
			}
		}
	})
}

// TestTornRecordCopied: a record that a power cut has torn is copied to broken, and the copy stays as it is when the
// lock is used again.
func TestTornRecordCopied(t *testing.T) {
	t.Parallel()
	s := newClientRun()
	if err := s.runAll(s.m.process()); err != nil {
		t.Fatal(err)
	}
	m := s.m.reboot(torn1, nil)
	before := map[string]string{}
	for file, n := range m.root.entries["locks"].entries["detached"].entries {
		before["detached~"+file] = string(n.data)
	}
	tab := m.mustOpen(t)
	for range 5 * removeEvery {
		row := mustLoad(t, tab, "detached")
		row.Data = []byte("goes on")
		if _, err := tab.Swap(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	broken := m.root.entries["broken"]
	if broken == nil || len(broken.entries) != 1 {
		t.Fatalf("one record was torn, kept were %v", broken)
	}
	for name, n := range broken.entries {
		if want, ok := before[name]; !ok || string(n.data) != want {
			t.Errorf("%s is %q, was %q", name, n.data, want)
		}
	}
}

// TestFailedSyncIsNotRefusal: a write that took effect, but whose sync failed, is never reported as refused.
func TestFailedSyncIsNotRefusal(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := m.process()
	tab, err := m.open(p)
	if err != nil {
		t.Fatal(err)
	}
	p.beforeStep = func(step string) {
		if step == "place" || step == "move" {
			p.fail = "sync directory"
		}
	}
	c := tab.recordFile("a")
	to := recordContent{name: "a"}
	if _, err := c.createRecord(t.Context(), to, true); err == nil || driverutil.IsFinal(err) {
		t.Errorf("create: %v", err)
	}
	p.fail = ""
	f, err := c.loadRecord(t.Context())
	if err != nil || !f.isLive() {
		t.Fatal(f, err)
	}
	if _, err := c.swapVersion(t.Context(), f.version, to, true); err == nil || driverutil.IsFinal(err) {
		t.Errorf("swap: %v", err)
	}
}

// TestDamageIsReported: within one boot, an unreadable record is an error and is not changed.
func TestDamageIsReported(t *testing.T) {
	t.Parallel()
	s := newClientRun()
	p := s.m.process()
	if err := s.runAll(p); err != nil {
		t.Fatal(err)
	}
	for _, n := range s.m.root.entries["locks"].entries["plain"].entries {
		n.data = n.data[:3]
	}
	tab := s.m.mustOpen(t)
	if _, err := tab.Load(t.Context(), "plain"); !errors.Is(err, errTorn) {
		t.Fatalf("a torn record: %v", err)
	}
}
