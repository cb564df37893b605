package fence_test

import (
	"errors"
	"math"
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
