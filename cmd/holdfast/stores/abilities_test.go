package stores_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/holdfast-go/holdfast/cmd/holdfast/stores"
	"github.com/holdfast-go/holdfast/driver"
	_ "github.com/holdfast-go/holdfast/store/memory"
)

// abilities says for each store and layout what it can do beyond Acquire, Renew, Release, Inspect, List and Break of a
// mutex. A change of the code that changes a row changes what users have: it needs a reason, and a line in CHANGELOG.md.
//
// The words are: fair, rw and semaphore for kinds of claims; detach and weight for Detach and SetWeight; endings and
// changes for NextEnding and NextChange; reasons for breaks with a reason; forget; floor and raise for reading and raising
// tokens; explain and examine; liveness for a file that keeps a client's claims; ledger for a run ledger, and clock for
// one that tells the store's time.
var abilities = map[string]map[string]string{
	"file": {
		"": "fair rw semaphore weight detach changes reasons forget floor raise explain examine liveness ledger clock",
	},
	"memory": {
		"": "fair rw semaphore weight detach changes reasons forget floor raise explain examine ledger clock",
	},
	"redis": {
		"":         "fair rw semaphore weight detach changes reasons forget floor raise explain examine ledger clock",
		"redisson": "detach changes reasons forget floor raise explain examine ledger clock",
	},
	"redlock": {
		"": "detach reasons forget floor raise explain examine",
	},
	"etcd": {
		"": "fair rw semaphore weight detach endings changes reasons floor raise explain examine ledger clock",
	},
	"zookeeper": {
		"":                  "fair rw semaphore endings changes reasons forget floor raise explain examine ledger clock",
		"curator-readwrite": "fair rw endings changes reasons forget floor raise explain examine ledger clock",
		"kazoo":             "fair rw endings changes reasons forget floor raise explain examine ledger clock",
		"both":              "fair rw endings changes reasons forget floor raise explain examine ledger clock",
		"curator-semaphore": "fair semaphore endings examine",
		"plain":             "endings changes reasons floor raise explain examine",
	},
	"consul": {
		"":     "fair rw semaphore detach endings changes reasons floor raise explain examine ledger clock",
		"lock": "detach endings changes reasons floor raise explain examine ledger clock",
		"key":  "detach endings changes reasons floor raise explain examine ledger clock",
	},
	"postgres": {
		"":         "fair rw semaphore weight detach changes reasons forget floor raise explain examine ledger clock",
		"shedlock": "detach floor raise explain examine",
	},
	"mysql": {
		"":         "fair rw semaphore weight detach changes reasons forget floor raise explain examine ledger clock",
		"shedlock": "detach floor raise explain examine",
	},
	"nats": {
		"": "fair rw semaphore weight detach changes reasons forget floor raise explain examine ledger clock",
	},
	"dynamodb": {
		"":        "fair rw semaphore weight detach changes reasons forget floor raise explain examine ledger clock",
		"awslock": "floor raise explain examine",
		"ledger":  "examine ledger clock",
	},
	"s3": {
		"":          "fair rw semaphore weight detach changes reasons forget floor raise explain examine ledger clock",
		"terraform": "detach forget floor raise explain examine",
	},
	"gcs": {
		"":        "fair rw semaphore weight detach changes reasons forget floor raise explain examine ledger clock",
		"gcslock": "detach forget floor raise explain examine",
		"vault":   "detach forget floor raise explain examine",
	},
	"kubernetes": {
		"":               "fair rw semaphore weight detach changes reasons forget floor raise explain examine ledger clock",
		"leaderelection": "detach forget floor raise explain examine",
	},
}

// TestAbilities: each store can do in each of its layouts what the table says, no more and no less.
func TestAbilities(t *testing.T) {
	for store, layouts := range abilities {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			open := start(t, store)
			for layout, want := range layouts {
				s, err := driver.Open(t.Context(), open(layout))
				if err != nil {
					t.Fatalf("%s: %v", layout, err)
				}
				if got := strings.Join(listAbilities(t, s), " "); got != want {
					t.Errorf("%s, layout %q, can do\n%s\nand the table says\n%s", store, layout, got, want)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestEachLayoutHasAbilities: each layout that the source of a store declares has a row in the table.
func TestEachLayoutHasAbilities(t *testing.T) {
	files, err := filepath.Glob("../../../store/*/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(len(files), err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		store := filepath.Base(filepath.Dir(file))
		ast.Inspect(f, func(n ast.Node) bool {
			c, ok := n.(*ast.ValueSpec)
			if !ok || len(c.Values) != 1 || fmt.Sprint(c.Type) != "Layout" || !c.Names[0].IsExported() {
				return true
			}
			value, ok := c.Values[0].(*ast.BasicLit)
			if !ok {
				t.Fatalf("%s: the value of %s is no literal", file, c.Names[0])
			}
			if layout, _ := strconv.Unquote(value.Value); !slices.Contains([]string{"", defaults[store]}, layout) {
				if _, listed := abilities[store][layout]; !listed {
					t.Errorf("the layout %q of %s has no row in the table of abilities", layout, store)
				}
			}
			return true
		})
	}
}

// defaults names the layouts that a store has without an option.
var defaults = map[string]string{
	"consul": "claims", "dynamodb": "record", "gcs": "record", "kubernetes": "record", "redis": "plain", "s3": "record",
	"zookeeper": "curator",
}

// listAbilities asks a store for each ability, in the order of the table. One that is refused as unsupported does not
// count, whatever methods the store has.
func listAbilities(t *testing.T, s driver.Store) (can []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	add := func(word string, ok bool) {
		if ok {
			can = append(can, word)
		}
	}
	supports := func(word string, err error) {
		if err != nil && !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("%s: %v", word, err)
		}
		add(word, !errors.Is(err, driver.ErrUnsupported))
	}
	name := strings.ToLower("abilities-" + rand.Text()[:8])
	info := s.Info()
	if len(info.Kinds) > 0 { // else it has no locks
		add("fair", info.Order != driver.OrderNone)
		add("rw", slices.Contains(info.Kinds, driver.KindRW))
		add("semaphore", slices.Contains(info.Kinds, driver.KindSemaphore))
		claim := driver.Claim{Name: name, ID: strings.ToLower(rand.Text()), Kind: info.Kinds[0], Limit: 1, Weight: 1,
			TTL: min(max(info.MinTTL, time.Minute), info.MaxTTL), Owner: "abilities"}
		if slices.Contains(info.Kinds, driver.KindRW) {
			claim.Kind, claim.Limit, claim.Weight = driver.KindRW, driver.RWLimit, driver.RWLimit
		}
		g, err := s.Acquire(ctx, claim)
		if err != nil {
			t.Fatal(err)
		}
		if w, ok := s.(driver.WeightChanger); ok {
			supports("weight", w.SetWeight(ctx, g, 1))
		}
		if d, ok := s.(driver.Detacher); ok {
			supports("detach", d.Detach(ctx, g, g.TTL))
		}
		if err := s.Release(ctx, g.Claim, g.Ref); err != nil {
			t.Error(err)
		}
	}
	_, ok := s.(driver.EndWatcher)
	add("endings", ok)
	_, ok = s.(driver.LockWatcher)
	add("changes", ok)
	_, ok = s.(driver.ReasonBreaker)
	add("reasons", ok)
	if f, ok := s.(driver.Forgetter); ok {
		supports("forget", f.Forget(ctx, name))
	}
	if r, ok := s.(driver.TokenRaiser); ok {
		_, err := r.ReadTokenFloor(ctx)
		supports("floor", err)
		supports("raise", r.RaiseToken(ctx, name, 1))
	}
	_, ok = s.(driver.Explainer)
	add("explain", ok)
	_, ok = s.(driver.Examiner)
	add("examine", ok)
	if l, ok := s.(driver.LivenessFiler); ok {
		f, err := l.LivenessFile()
		supports("liveness", err)
		if err == nil {
			f.Close()
		}
	}
	if o, ok := s.(driver.LedgerOpener); ok {
		l, err := o.OpenLedger(ctx)
		supports("ledger", err)
		if err == nil {
			defer l.Close()
			_, _, err := l.ReadClock(ctx)
			supports("clock", err)
		}
	}
	return can
}
