package record

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/holdfast-go/holdfast/driver"
)

// notPacked are the fields that the engine sets for a Swap, or a step for the write that follows it, and those of the
// version before.
var notPacked = []string{"Row.Data", "Row.Token", "Row.Durable", "Row.ExpiresAt", "Row.Notify", "Row.KeepUntil",
	"Row.MarkTTL", "Record.brokenSession", "snapshot.written", "snapshot.replaced"}

// TestPackedRow: whatever a row has, it is the same after it was packed, or is not packed at all.
func TestPackedRow(t *testing.T) {
	newRow := func() *snapshot {
		c := Claim{ID: "a", Weight: 1, TTL: time.Second, State: Granted, Token: 7, Beat: 5, SilenceLimit: time.Second}
		return &snapshot{row: Row{Name: "m", Version: "2"}, rec: &Record{Kind: driver.KindMutex, Limit: 1, Token: 8,
			Claims: []Claim{c}}}
	}
	parts := []func(*snapshot) reflect.Value{
		func(s *snapshot) reflect.Value { return reflect.ValueOf(s).Elem() },
		func(s *snapshot) reflect.Value { return reflect.ValueOf(&s.row).Elem() },
		func(s *snapshot) reflect.Value { return reflect.ValueOf(s.rec).Elem() },
		func(s *snapshot) reflect.Value { return reflect.ValueOf(&s.rec.Claims[0]).Elem() },
	}
	packed := 0
	for _, part := range parts {
		of := part(newRow()).Type()
		for i := range of.NumField() {
			name := of.Name() + "." + of.Field(i).Name
			s := newRow()
			field := part(s).Field(i)
			if name == "snapshot.row" || name == "snapshot.rec" || slices.Contains(notPacked, name) {
				continue
			}
			changeValue(t, reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem())
			if !s.isPackable() {
				continue
			}
			packed++
			p := packedRows{byName: map[string]*packedRow{}}
			p.addRow(*s, driver.Instant{Monotonic: 3})
			got := p.byName[s.row.Name].unpack(s.row.Name)
			if !reflect.DeepEqual(got.snapshot, *s) || got.seenAt.Monotonic != 3 {
				t.Errorf("%s: %+v, %+v became %+v, %+v", name, s, s.rec, got, got.rec)
			}
		}
	}
	if packed < 20 {
		t.Errorf("only %d changed rows can be packed", packed)
	}
}

// lateTable has rows, and an answer of Load that comes late.
type lateTable struct {
	sharedTable
	rows   map[string]Row
	answer chan struct{} // Load waits for it, if it is set when it has read
}

func (p *lateTable) Load(_ context.Context, name string) (Row, error) {
	p.mu.Lock()
	row, answer := p.rows[name], p.answer
	p.mu.Unlock()
	if answer != nil {
		<-answer
	}
	return row, nil
}

func (p *lateTable) Swap(ctx context.Context, r Row) (Row, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rows[r.Name].Version != r.Version {
		return Row{}, ErrConflict
	}
	r, err := p.mapTable.Swap(ctx, r)
	p.rows[r.Name] = r
	return r, err
}

// TestLateLoadOfPackedRow: a load that is answered only after the row was replaced and packed brings the version before
// it back. The next renewal is refused, reads the row, and succeeds.
func TestLateLoadOfPackedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &lateTable{rows: map[string]Row{}}
		e := New(p).(*engine)
		defer e.Close()
		acquire := func(name string) driver.Grant {
			g, err := e.Acquire(t.Context(), driver.Claim{Name: name, ID: name, Kind: driver.KindMutex, Limit: 1, Weight: 1,
				TTL: driver.MaxTTL})
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		renew := func(g driver.Grant) {
			e.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
				if r.Err != nil {
					t.Error(r.Err)
				}
			})
		}
		g := acquire("m")
		old, _ := e.recallRow("m")
		p.answer = make(chan struct{})
		go e.Inspect(t.Context(), "m")
		synctest.Wait()
		renew(g)
		for n := range maxWholeRows + 1 {
			acquire(fmt.Sprint(n))
		}
		if e.rows.packed.byName["m"] == nil {
			t.Fatal("the row is not packed")
		}
		close(p.answer)
		synctest.Wait()
		if row, _ := e.recallRow("m"); row.Version != old.Version {
			t.Errorf("version %q is known, and the late one is %q", row.Version, old.Version)
		}
		renew(g)
		if err := e.Release(t.Context(), g.Claim, ""); err != nil {
			t.Error(err)
		}
	})
}

// changeValue gives a field another value.
func changeValue(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.New(v.Type().Elem()).Elem()))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	default:
		t.Fatalf("a field of type %v", v.Type())
	}
}

// sharedTable is a mapTable for many goroutines.
type sharedTable struct {
	mapTable
	mu sync.Mutex
}

func (p *sharedTable) Swap(ctx context.Context, r Row) (Row, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mapTable.Swap(ctx, r)
}

// TestHeldRowsAreSmall: of very many locks that a client holds, it keeps each row in few bytes. A renewal and a release
// are one swap each nevertheless. A row that is not used for long is forgotten.
func TestHeldRowsAreSmall(t *testing.T) {
	const names = 10_000
	synctest.Test(t, func(t *testing.T) {
		p := &sharedTable{}
		e := New(p).(*engine)
		defer e.Close()
		grants := make([]driver.Grant, names)
		acquireAll := func() {
			for n := range grants {
				var err error
				grants[n], err = e.Acquire(t.Context(), driver.Claim{Name: fmt.Sprintf("orders/%024d", n),
					ID: fmt.Sprintf("%026d", n), Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: driver.MaxTTL,
					Meta: strings.Repeat("m", 1000)})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		before := heapInUse()
		acquireAll()
		for n := range grants {
			grants[n].Meta = ""
		}
		// The texts of name, id and version have 32 bytes each or less.
		each := (heapInUse() - before) / names
		t.Logf("%d bytes for each row", each)
		if each > 340 {
			t.Error("that is too much")
		}
		swaps := p.n
		e.Renew(t.Context(), grants, func(i int, r driver.Renewal) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
		for _, g := range grants {
			if err := e.Release(t.Context(), g.Claim, ""); err != nil {
				t.Fatal(err)
			}
		}
		if p.n-swaps != 2*names {
			t.Errorf("%d swaps for %d locks", p.n-swaps, names)
		}
		acquireAll()
		time.Sleep(usedRowKeep + time.Minute)
		if _, err := e.Acquire(t.Context(), driver.Claim{Name: "m", ID: "a", Kind: driver.KindMutex, Limit: 1, Weight: 1,
			TTL: time.Second}); err != nil {
			t.Fatal(err)
		}
		if _, used, _ := e.countKept(); used != 1 {
			t.Errorf("much later %d rows are kept", used)
		}
	})
	k := newKnownRows()
	for n := range maxOwnRows + 2*maxWholeRows {
		k.putRow(snapshot{row: Row{Name: fmt.Sprint(n)}, rec: &Record{Claims: []Claim{{own: true}}}}, driver.Instant{})
		k.trimRows(driver.Instant{}, time.Hour)
	}
	if len(k.packed.byName) != maxOwnRows {
		t.Errorf("%d rows are kept, and the maximum is %d", len(k.packed.byName), maxOwnRows)
	}
}
