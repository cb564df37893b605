package stores_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
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
// mutex. A change of the code that changes a row changes what users have: it needs a reason, and a line in
// CHANGELOG.md.
//
// The words are: fair, newest, rw and semaphore for kinds of claims; detach and weight for Detach and SetWeight;
// permits for numbers of a semaphore's permits; endings for NextEnding; reasons for breaks with a reason; forget;
// tokens for reading and raising tokens; explain for naming the keys of a claim; liveness for a file that keeps a
// client's claims; ledger for a run ledger, and clock for one that tells the store's time.
var abilities = map[string]map[string]string{
	"file": {
		"": "fair newest rw semaphore weight detach permits reasons forget tokens explain liveness ledger clock",
	},
	"memory": {
		"": "fair newest rw semaphore weight detach permits reasons forget tokens ledger clock",
	},
	"redis": {
		"":         "fair newest rw semaphore weight detach permits reasons forget tokens explain ledger clock",
		"redisson": "detach forget tokens explain ledger clock",
	},
	"redlock": {
		"": "detach reasons forget tokens explain",
	},
	"etcd": {
		"": "fair newest rw semaphore weight detach endings reasons tokens explain ledger clock",
	},
	"zookeeper": {
		"":                  "fair newest rw semaphore endings reasons forget tokens explain ledger clock",
		"curator-readwrite": "fair newest rw endings reasons forget tokens explain ledger clock",
		"kazoo":             "fair newest rw endings reasons forget tokens explain ledger clock",
		"both":              "fair newest rw endings reasons forget tokens explain ledger clock",
		"curator-semaphore": "fair semaphore endings reasons",
		"plain":             "endings reasons tokens explain",
	},
	"consul": {
		"":     "fair newest rw semaphore detach endings reasons tokens explain ledger clock",
		"lock": "detach endings reasons tokens explain ledger clock",
		"key":  "detach endings reasons tokens explain ledger clock",
	},
	"postgres": {
		"":         "fair newest rw semaphore weight detach permits reasons forget tokens explain ledger clock",
		"shedlock": "detach tokens explain",
	},
	"mysql": {
		"":         "fair newest rw semaphore weight detach permits reasons forget tokens explain ledger clock",
		"shedlock": "detach tokens explain",
	},
	"nats": {
		"": "fair newest rw semaphore weight detach permits reasons forget tokens explain ledger clock",
	},
	"dynamodb": {
		"":        "fair newest rw semaphore weight detach permits reasons forget tokens explain ledger clock",
		"awslock": "tokens explain",
		"ledger":  "ledger clock",
	},
	"s3": {
		"":          "fair newest rw semaphore weight detach permits reasons forget tokens explain ledger clock",
		"terraform": "detach forget tokens explain",
	},
	"gcs": {
		"":        "fair newest rw semaphore weight detach permits reasons forget tokens explain ledger clock",
		"gcslock": "detach forget tokens explain",
		"vault":   "detach forget tokens explain",
	},
	"azure": {
		"":      "fair newest rw semaphore weight detach permits reasons forget tokens explain ledger clock",
		"lease": "detach forget tokens explain",
	},
	"kubernetes": {
		"":               "fair newest rw semaphore weight detach permits reasons forget tokens explain ledger clock",
		"leaderelection": "detach forget tokens explain",
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
				if layout == "" {
					compareWithGuarantees(t, store, s.Info())
				}
				if got := strings.Join(listAbilities(t, wrapper{s}), " "); got != want {
					t.Errorf("%s, layout %q, can do\n%s\nand the table says\n%s", store, layout, got, want)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// guaranteedAs is how the table of GUARANTEES.md calls the stores whose names it writes in another way than their
// schemes. It leaves out Redlock, which is only there to share locks with others.
var guaranteedAs = map[string]string{
	"zookeeper": "ZooKeeper", "consul": "Consul", "postgres": "PostgreSQL", "mysql": "MySQL, MariaDB", "nats": "NATS",
	"dynamodb": "DynamoDB", "gcs": "Cloud Storage", "s3": "S3, MinIO, R2", "azure": "Azure Storage",
	"kubernetes": "Kubernetes", "redis": "Redis", "redlock": "",
}

// compareWithGuarantees compares what a store says of itself with its row of GUARANTEES.md.
func compareWithGuarantees(t *testing.T, store string, info driver.Info) {
	t.Helper()
	name, renamed := guaranteedAs[store]
	if renamed && name == "" {
		return
	}
	document, err := os.ReadFile("../../../GUARANTEES.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(document), "\n| "+cmp.Or(name, store)+" | ")
	row, _, _ := strings.Cut(rest, " |\n")
	cells := strings.Split(row, " | ")
	if !found || len(cells) != 6 {
		t.Fatalf("GUARANTEES.md has no row of six cells for %s", store)
	}
	spaced := strings.NewReplacer("-", " ")
	weakened := info.Tier == driver.TierSettings && strings.Contains(cells[0], " with ") // these servers sync no files
	if !weakened && !strings.HasPrefix(spaced.Replace(cells[0]), spaced.Replace(string(info.Tier))) {
		t.Errorf("GUARANTEES.md says that %s is %s, and its Info %s", store, cells[0], info.Tier)
	}
	for what, survives := range map[string]bool{
		"restart": info.Survives.Restart, "power cut": info.Survives.PowerCut, "failover": info.Survives.Failover,
	} {
		if says, known := saysSurvives(cells[1], what); known && says != survives && !(weakened && what == "power cut") {
			t.Errorf("GUARANTEES.md says that %s survives: %s, and its Info says of a %s %v", store, cells[1], what, survives)
		}
	}
	if never := cells[3] == "never"; never != (info.TokenRegression == "") {
		t.Errorf("GUARANTEES.md says that tokens of %s fall %s, and its Info %q", store, cells[3], info.TokenRegression)
	}
	ttl, _, _ := strings.Cut(cells[4], " (")
	known := ttl != "what the servers allow" && store != "gcs" // this server allows more writes than Google's
	if known && strings.ReplaceAll(ttl, " ", "") != info.MinTTL.String() {
		t.Errorf("GUARANTEES.md says that the smallest TTL of %s is %s, and its Info %v", store, cells[4], info.MinTTL)
	}
	if limits := fmt.Sprintf("%d, %d", info.MaxHolders, info.MaxWaiters); cells[5] != limits {
		t.Errorf("GUARANTEES.md says that %s has %s holders and waiters, and its Info %s", store, cells[5], limits)
	}
}

// saysSurvives returns whether a cell of GUARANTEES.md says that claims survive something. It is not known where that
// depends on settings.
func saysSurvives(cell, what string) (says, known bool) {
	if cell == "as the service promises" {
		return true, true
	}
	for _, part := range strings.FieldsFunc(cell, func(r rune) bool { return r == ',' || r == ';' }) {
		if part = strings.TrimSpace(part); strings.Contains(part, what) {
			return true, part == what
		}
	}
	return false, !strings.Contains(cell, "what it keeps")
}

// TestGuaranteesOfLayouts: the layouts that GUARANTEES.md and docs/choosing.md except from what all stores can do are
// those without that ability in the table.
func TestGuaranteesOfLayouts(t *testing.T) {
	for _, c := range []struct {
		document, before, after, ability string
		except                           []string // the beginnings of store/layout of which it says so in another way
	}{
		{"GUARANTEES.md", "Redlock, and the layouts ", ", have no ledger.", "ledger", []string{"redlock/"}},
		{"docs/choosing.md", "| locks that outlive their process | any store but ZooKeeper and the layout ", " |", "detach",
			[]string{"zookeeper/", "dynamodb/ledger"}},
	} {
		document, err := os.ReadFile("../../../" + c.document)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(strings.Join(strings.Fields(string(document)), " "), c.before)
		sentence, _, ended := strings.Cut(rest, c.after)
		if !found || !ended {
			t.Errorf("%s does not say which layouts have no %s", c.document, c.ability)
			continue
		}
		said := map[string]bool{}
		for i, word := range strings.Split(sentence, "`") {
			if i%2 == 1 {
				said[word] = true
			}
		}
		for store, layouts := range abilities {
			for layout, can := range layouts {
				excepted := slices.ContainsFunc(c.except, func(p string) bool { return strings.HasPrefix(store+"/"+layout, p) })
				if lacks := !slices.Contains(strings.Fields(can), c.ability); !excepted && lacks != said[layout] {
					t.Errorf("%s, layout %q: without %s is %v, and %s says %v", store, layout, c.ability, lacks, c.document,
						said[layout])
				}
			}
		}
	}
}

// wrapper passes all calls on, as one of a user's may: nothing is lost by it.
type wrapper struct{ driver.Store }

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
	"azure": "record", "consul": "claims", "dynamodb": "record", "gcs": "record", "kubernetes": "record", "mysql": "record", "postgres": "record",
	"redis": "plain", "s3": "record", "zookeeper": "curator",
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
	supports := func(word string, announced bool, err error) {
		switch {
		case err != nil && !errors.Is(err, driver.ErrUnsupported):
			t.Errorf("%s: %v", word, err)
		case announced != (err == nil):
			t.Errorf("%s: its Info says %v, and the answer is %v", word, announced, err)
		}
		add(word, err == nil)
	}
	name := strings.ToLower("abilities-" + rand.Text()[:8])
	info := s.Info()
	if len(info.Kinds) > 0 { // else it has no locks
		add("fair", info.Order != driver.OrderNone)
		add("newest", info.Abilities.NewestOnly)
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
		supports("weight", info.Abilities.SetWeight, s.SetWeight(ctx, g, 1))
		supports("detach", info.Abilities.Detach, s.Detach(ctx, g, g.TTL))
		if err := s.Release(ctx, g.Claim, g.Ref); err != nil {
			t.Error(err)
		}
		if slices.Contains(info.Kinds, driver.KindSemaphore) {
			claim.ID, claim.Kind, claim.Limit, claim.Weight = strings.ToLower(rand.Text()), driver.KindSemaphore, 2, 1
			if g, err = s.Acquire(ctx, claim); err != nil {
				t.Fatal(err)
			}
			if info.Abilities.Permits != (len(g.Permits) == 1) {
				t.Errorf("permits: its Info says %v, and the claim has %v", info.Abilities.Permits, g.Permits)
			}
			add("permits", len(g.Permits) == 1)
			if err := s.Release(ctx, g.Claim, g.Ref); err != nil {
				t.Error(err)
			}
		}
	}
	ended, end := context.WithCancel(ctx)
	end()
	_, err := s.NextEnding(ended)
	supports("endings", info.Abilities.Endings, unlessEnded(err))
	add("reasons", info.Abilities.Reasons)
	supports("forget", info.Abilities.Forget, s.Forget(ctx, name))
	_, err = s.ReadTokenFloor(ctx)
	supports("tokens", info.Abilities.Tokens, err)
	add("explain", len(s.Explain(driver.Claim{Name: name, Kind: driver.KindMutex, Limit: 1, Weight: 1}).Keys) > 0)
	if _, err := s.Examine(ctx); err != nil {
		t.Error(err)
	}
	f, err := s.LivenessFile()
	supports("liveness", info.Abilities.LivenessFile, err)
	if err == nil {
		f.Close()
	}
	l, err := s.OpenLedger(ctx)
	supports("ledger", info.Abilities.Ledger, err)
	if err == nil {
		defer l.Close()
		_, _, err := l.ReadClock(ctx)
		supports("clock", true, err)
	}
	return can
}

// unlessEnded hides the error of a context that has ended.
func unlessEnded(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
