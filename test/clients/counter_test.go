package clients

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// The long run of make prove has more of everything.
var (
	each   = flag.Int("each", 1, "how many programs in each language count")
	turns  = flag.Int("turns", 5, "how often each of them counts")
	faults = flag.Bool("faults", false, "kill and stop engines meanwhile")
	onAll  = flag.Bool("all", false, "run each case on all stores in each language")
)

// TestCounter: programs in all languages and in Go add to one number under one lock, also while their engines are
// killed and stopped for longer than the TTL. No addition is lost, and the tokens grow.
func TestCounter(t *testing.T) {
	t.Parallel()
	k := mustBuild(t)
	redis, err := redistest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Stop)
	file := filepath.Join(t.TempDir(), "number")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	ttl := 30 * time.Second
	if *faults {
		ttl = 5 * time.Second
	}
	r := newRunner(t, k, "", "redis://"+redis.Addr)
	var counted []<-chan answer
	for language, argv := range k.agents {
		for n := range *each {
			r.argv = argv
			counted = append(counted, r.agent(language+strconv.Itoa(n)).send(r, "count",
				map[string]any{"file": file, "turns": *turns, "ttl": ttl.Seconds()}))
		}
	}
	programs := len(counted) + *each
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range *each {
			if err := countInGo(t.Context(), r.store, file, ttl); err != nil {
				t.Error(err)
			}
		}
		for _, c := range counted {
			if got := <-c; got["error"] != nil {
				t.Errorf("%v", got)
			}
		}
	}()
	disturb(r, ttl, done)
	text, err := os.ReadFile(file)
	if want := programs * *turns; err != nil || string(text) != strconv.Itoa(want) {
		t.Errorf("the number is %s, want %d (%v)", text, want, err)
	}
	checkTokens(t, file)
}

// disturb kills an engine now and then, and stops one for longer than the TTL, if the flag says so, until done is
// closed.
func disturb(r *runner, ttl time.Duration, done <-chan struct{}) {
	killed, stopped := 0, 0
	names := make([]string, 0, len(r.agents))
	for name := range r.agents {
		names = append(names, name)
	}
	for turn := 0; ; turn++ {
		var due <-chan time.Time
		if *faults {
			due = time.After(3 * time.Second)
		}
		select {
		case <-done:
			r.Logf("%d engines killed, %d stopped", killed, stopped)
			return
		case <-due:
		}
		pid := r.findEngine(names[turn%len(names)])
		if pid == 0 {
			continue
		}
		if turn%2 == 0 {
			killed++
			_ = syscall.Kill(pid, syscall.SIGKILL)
			continue
		}
		stopped++
		_ = syscall.Kill(pid, syscall.SIGSTOP)
		select {
		case <-done:
		case <-time.After(ttl + 2*time.Second):
		}
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// countInGo does what the agents do.
func countInGo(ctx context.Context, store, file string, ttl time.Duration) error {
	client, err := holdfast.Open(ctx, store, &holdfast.Options{TTL: ttl})
	if err != nil {
		return err
	}
	defer client.Close()
	mutex := client.Mutex("counter", &holdfast.LockOptions{Fair: true})
	for range *turns {
		err := mutex.Do(ctx, func(_ context.Context, l *holdfast.Lease) error { return addOne(file, l.Token()) })
		if err != nil {
			return err
		}
	}
	return nil
}

func addOne(file string, token int64) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	tokens, err := os.OpenFile(file+".tokens", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(tokens, token)
	return errors.Join(err, tokens.Close(), os.WriteFile(file, []byte(strconv.Itoa(number+1)), 0o600))
}

// checkTokens wants each token to be above the one before.
func checkTokens(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file + ".tokens")
	if err != nil {
		t.Fatal(err)
	}
	var tokens []int64
	for line := range strings.FieldsSeq(string(text)) {
		n, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, n)
	}
	if !slices.IsSorted(tokens) || len(slices.Compact(slices.Clone(tokens))) != len(tokens) {
		t.Errorf("the tokens do not grow: %v", tokens)
	}
}
