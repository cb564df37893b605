package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestParse: what is not a token is refused, with an error that names it.
func TestParse(t *testing.T) {
	for _, text := range []string{"1", "42", "1795401133863312", "9007199254740991", "007"} {
		if got, err := fence.Parse(text); err != nil || got < 1 {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "0", "-1", "+1", " 1", "1 ", "1.0", "1e3", "0x10", "9007199254740992", "18446744073709551616",
		"99999999999999999999", "one", "１",
	} {
		if got, err := fence.Parse(text); !errors.Is(err, fence.ErrInvalid) || got != 0 {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, token := range []fence.Token{0, -1, 1 << 53, math.MaxInt64, math.MinInt64} {
		if err := token.Check(); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%d: %v", token, err)
		}
	}
}

// TestOf: only an exclusive lease has a token that can fence.
func TestOf(t *testing.T) {
	client, err := holdfast.New(memory.New(nil).Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	hold := func(lease *holdfast.Lease, err error) *holdfast.Lease {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	run, err := client.Ledger("l", nil).Begin(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	exclusive := map[string]fence.Holder{
		"mutex":           hold(client.Mutex("m", nil).Lock(t.Context())),
		"writer":          hold(client.RWMutex("w", nil).Lock(t.Context())),
		"whole semaphore": hold(client.Semaphore("s", 2, nil).Acquire(t.Context(), 2)),
		"run":             run,
	}
	for name, holder := range exclusive {
		if token, err := fence.Of(holder); err != nil || int64(token) != holder.Token() {
			t.Errorf("%s: %d, %v", name, token, err)
		}
	}
	shared := map[string]fence.Holder{
		"nil":    nil,
		"reader": hold(client.RWMutex("r", nil).RLock(t.Context())),
		"permit": hold(client.Semaphore("p", 2, nil).Acquire(t.Context(), 1)),
	}
	for name, holder := range shared {
		if token, err := fence.Of(holder); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %d, %v", name, token, err)
		}
	}
}

// TestStaleError: a stale token means that the lease has ended, and the error carries both tokens.
func TestStaleError(t *testing.T) {
	var err error = &fence.StaleError{Resource: "shoe", Token: 5, Largest: 9}
	if !errors.Is(err, fence.ErrStale) || !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("%v matches %t, %t", err, errors.Is(err, fence.ErrStale), errors.Is(err, holdfast.ErrLost))
	}
	if want := `the fencing token is stale: "shoe" has seen 9, which is larger than 5`; err.Error() != want {
		t.Errorf("the error is %q", err)
	}
}

// requireStale checks that a token was rejected because of a larger one.
func requireStale(t *testing.T, err error, token, largest fence.Token) {
	t.Helper()
	stale, ok := errors.AsType[*fence.StaleError](err)
	if !ok || stale.Token != token || stale.Largest != largest {
		t.Errorf("token %d after %d: %v", token, largest, err)
	}
}

// TestNilArguments: a nil context, transaction, database, holder or response gives ErrInvalid, and no panic.
func TestNilArguments(t *testing.T) {
	var noContext context.Context
	table, err := fence.NewSQL(fence.SQLite, "fence")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "file")
	for name, call := range map[string]func() error{
		"WriteFile":                  func() error { return fence.WriteFile(noContext, path, nil, 0o600, 1) },
		"AppendFile":                 func() error { return fence.AppendFile(noContext, path, nil, 0o600, 1) },
		"MemoryGate.Enter":           func() error { _, err := new(fence.MemoryGate).Enter(noContext, "r", 1); return err },
		"a gate of SQL, Enter":       func() error { _, err := fence.NewSQLGate(table, &sql.DB{}).Enter(noContext, "r", 1); return err },
		"a gate of nothing, Enter":   func() error { _, err := fence.NewSQLGate(nil, nil).Enter(t.Context(), "r", 1); return err },
		"SQL.Check":                  func() error { return table.Check(noContext, &sql.Tx{}, "r", 1) },
		"SQL.Check, no transaction":  func() error { return table.Check(t.Context(), nil, "r", 1) },
		"SQL.Migrate":                func() error { return table.Migrate(noContext, &sql.DB{}) },
		"SQL.Migrate, no database":   func() error { return table.Migrate(t.Context(), nil) },
		"Of":                         func() error { _, err := fence.Of(nil); return err },
		"SetHeader":                  func() error { return fence.SetHeader(http.Header{}, nil) },
		"ResponseError":              func() error { return fence.ResponseError(nil) },
		"Transport without a holder": func() error { return roundTrip(t, &fence.Transport{}) },
	} {
		if err := call(); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) > 0 {
		t.Errorf("a write that was refused has left %v, %v", files, err)
	}
}

// roundTrip sends a request that must not be sent.
func roundTrip(t *testing.T, transport http.RoundTripper) error {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://127.0.0.1:1/", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(r)
	if err == nil {
		_ = response.Body.Close()
	}
	return err
}
