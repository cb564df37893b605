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

// notPacked are the fields that the engine sets for a Swap, or a step for the write that follows it.
var notPacked = []string{"Row.Data", "Row.Token", "Row.Durable", "Row.ExpiresAt", "Row.Notify", "Row.KeepUntil",
	"Row.MarkTTL", "Record.brokenSession"}

// TestPackedRow: whatever a row has, it is the same after it was packed, or is not packed at all.
func TestPackedRow(t *testing.T) {
	newRow := func() *snapshot {
		c := Claim{ID: "a", Weight: 1, TTL: time.Second, State: Granted, Token: 7, Beat: 5, SilenceLimit: time.Second}
		return &snapshot{row: Row{Name: "m", Version: "2"}, rec: &Record{Kind: driver.KindMutex, Limit: 1, Token: 8,
			Claims: []Claim{c}}, written: true, replaced: "1"}
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
		// The texts of name, id, and of two versions have 32 bytes each or less.
		each := (heapInUse() - before) / names
		t.Logf("%d bytes for each row", each)
		if each > 400 {
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
	for n := range maxUsedRows + 2*maxWholeRows {
		k.putRow(snapshot{row: Row{Name: fmt.Sprint(n)}, rec: &Record{Claims: []Claim{{}}}}, driver.Instant{})
		k.trimRows(driver.Instant{}, time.Hour)
	}
	if len(k.packed.byName) != maxUsedRows {
		t.Errorf("%d rows are kept, and the maximum is %d", len(k.packed.byName), maxUsedRows)
	}
}
