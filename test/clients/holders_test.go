package clients

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
)

// The long run of make prove has more of everything.
var (
	each   = flag.Int("each", 1, "how many programs in each language hold the lock")
	turns  = flag.Int("turns", 5, "how often each of them holds it at least")
	lasts  = flag.Duration("for", 0, "for how long they do that at least, on each store")
	faults = flag.Bool("faults", false, "kill and stop engines, and stop programs, meanwhile")
	onAll  = flag.Bool("all", false, "use all stores in each language")
)

// TestHolders: programs in all languages and in Go hold one lock in turn, also while their engines are killed, and
// their engines and they themselves are stopped for longer than the TTL. Each writes into a log that all share from
// when to when it certainly held the lock: by what it knew at the end, as valid said. No two of these times overlap,
// and the tokens grow.
func TestHolders(t *testing.T) {
	t.Parallel()
	k := mustBuild(t)
	urlOf, err := startedStores()
	if err != nil {
		t.Fatal(err)
	}
	for _, store := range slices.Sorted(maps.Keys(urlOf)) {
		if store != "redis" && !*onAll {
			continue
		}
		t.Run(store, func(t *testing.T) { holdInTurn(t, k, urlOf[store](t, "holders")) })
	}
}

func holdInTurn(t *testing.T, k *kit, url string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "log")
	ttl := 30 * time.Second
	if *faults {
		ttl = 5 * time.Second
	}
	commands := maps.Clone(k.agents)
	commands["go"] = []string{os.Args[0], holderArgument}
	r := newRunner(t, k, "", url)
	var working []<-chan answer
	for language, argv := range commands {
		for n := range *each {
			r.argv = argv
			working = append(working, r.agent(language+strconv.Itoa(n)).send(r, "work", map[string]any{
				"as": language, "file": file, "turns": *turns, "for": lasts.Seconds(), "ttl": ttl.Seconds()}))
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, w := range working {
			if got := <-w; got["error"] != nil {
				t.Errorf("%v", got)
			}
		}
	}()
	disturb(r, ttl, done)
	for language, n := range checkLog(t, file) {
		if n < *each**turns {
			t.Errorf("%s has held the lock %d times", language, n)
		}
	}
}

// disturb kills engines, stops engines, and stops programs, the latter two for longer than the TTL, if the flag says
// so, until done is closed.
func disturb(r *runner, ttl time.Duration, done <-chan struct{}) {
	killed, engines, programs := 0, 0, 0
	names := slices.Sorted(maps.Keys(r.agents))
	for turn := 0; ; turn++ {
		var due <-chan time.Time
		if *faults {
			due = time.After(3 * time.Second)
		}
		select {
		case <-done:
			r.Logf("%d engines killed, %d engines and %d programs stopped", killed, engines, programs)
			return
		case <-due:
		}
		name := names[turn/3%len(names)]
		pid := r.findEngine(name) // programs in Go have none
		switch {
		case pid == 0 || turn%3 == 2:
			pid = r.agents[name].cmd.Process.Pid
			programs++
		case turn%3 == 1:
			engines++
		default:
			killed++
			_ = syscall.Kill(pid, syscall.SIGKILL)
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGSTOP)
		select {
		case <-done:
		case <-time.After(ttl + 2*time.Second):
		}
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// held is a line of the log: who has held the lock, under which token, and from when to when by the clock of the
// machine.
type held struct {
	language        string
	token, from, to int64
}

// checkLog wants that no two times of the log overlap, and that the tokens grow. It returns how many there are.
func checkLog(t *testing.T, file string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []held
	counts := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var h held
		if _, err := fmt.Sscan(line, &h.language, &h.token, &h.from, &h.to); err != nil || h.from > h.to {
			t.Fatalf("%q in the log: %v", line, err)
		}
		all = append(all, h)
		counts[h.language]++
	}
	if overlap := findOverlap(all); overlap != "" {
		t.Error(overlap)
	}
	t.Logf("the lock was held %d times: %v", len(all), counts)
	return counts
}

// findOverlap says which two holders had the lock at the same time, or not in the order of their tokens.
func findOverlap(all []held) string {
	slices.SortFunc(all, func(a, b held) int { return cmp.Compare(a.from, b.from) })
	for i := range len(all) - 1 {
		if a, b := all[i], all[i+1]; a.to > b.from || a.token >= b.token {
			return fmt.Sprintf("two hold the lock at once, or out of order: %+v and %+v", a, b)
		}
	}
	return ""
}

// TestFindOverlap: the check of the log finds what must not be.
func TestFindOverlap(t *testing.T) {
	t.Parallel()
	first := held{"go", 1, 10, 20}
	for _, c := range []struct {
		second held
		bad    bool
	}{
		{held{"java", 2, 20, 30}, false},
		{held{"java", 2, 19, 30}, true},
		{held{"java", 2, 12, 15}, true},
		{held{"java", 1, 20, 30}, true},
		{held{"java", 2, 1, 9}, true},
	} {
		if got := findOverlap([]held{c.second, first}); (got != "") != c.bad {
			t.Errorf("%+v after %+v: %q", c.second, first, got)
		}
	}
}

// holderArgument makes the program of this test a holder in Go, which does what the other agents do: holder URL.
const holderArgument = "holder"

// runHolder reads commands, and answers them. The end of its input ends it.
func runHolder(url string) int {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if err := answerAsHolder(url, in.Bytes()); err != nil {
			return 1
		}
	}
	return 0
}

func answerAsHolder(url string, line []byte) error {
	var command struct {
		ID    int     `json:"id"`
		Do    string  `json:"do"`
		As    string  `json:"as"`
		File  string  `json:"file"`
		Turns int     `json:"turns"`
		For   float64 `json:"for"`
		TTL   float64 `json:"ttl"`

		Callers, Count int
	}
	reply := answer{}
	err := json.Unmarshal(line, &command)
	switch {
	case err != nil:
	case command.Do == "cycles":
		err = cycleInGo(command.Callers, command.Count)
	default:
		seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
		end := time.Now().Add(seconds(command.For))
		err = holdInGo(url, command.As, command.File, seconds(command.TTL), func(done int) bool {
			return done < command.Turns || time.Now().Before(end)
		})
	}
	if err != nil {
		reply["error"] = err.Error()
	}
	reply["id"] = command.ID
	if line, err = json.Marshal(reply); err == nil {
		fmt.Println(string(line))
	}
	return err
}

// benchClient is the client of the benchmark, which goes on from one command to the next.
var benchClient = sync.OnceValues(func() (*holdfast.Client, error) {
	return holdfast.Open(context.Background(), os.Args[2], nil)
})

// cycleInGo acquires and releases locks, count times in all.
func cycleInGo(callers, count int) error {
	client, err := benchClient()
	if err != nil {
		return err
	}
	var left atomic.Int64
	left.Store(int64(count))
	failed := make([]error, callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			mutex := client.Mutex(strconv.Itoa(i), nil)
			for failed[i] == nil && left.Add(-1) >= 0 {
				var lease *holdfast.Lease
				if lease, failed[i] = mutex.Lock(context.Background()); failed[i] == nil {
					failed[i] = lease.Release()
				}
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// holdInGo does what the agents in other languages do.
func holdInGo(url, as, file string, ttl time.Duration, goesOn func(done int) bool) error {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, url, &holdfast.Options{TTL: ttl})
	if err != nil {
		return err
	}
	defer client.Close()
	mutex := client.Mutex("counter", &holdfast.LockOptions{Fair: true})
	for done := 0; goesOn(done); {
		held, err := holdOnce(ctx, mutex, as, file)
		if held {
			done++
		}
		if err != nil && !errors.As(err, new(*holdfast.Error)) {
			return err
		}
	}
	return nil
}

// holdOnce holds the lock for a moment, and writes that into the log if it was certainly held all the time.
func holdOnce(ctx context.Context, mutex *holdfast.Mutex, as, file string) (held bool, err error) {
	err = mutex.Do(ctx, func(ctx context.Context, l *holdfast.Lease) error {
		from := monotonic()
		time.Sleep(time.Millisecond)
		to := monotonic()
		if !l.Valid() {
			return nil
		}
		held = true
		return appendLine(file, fmt.Sprintln(as, l.Token(), from, to))
	})
	return held, err
}

func appendLine(file, line string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// monotonic reads the clock that all agents read, in nanoseconds.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}
