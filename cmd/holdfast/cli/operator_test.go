package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestTokenFloor: an operator sees the tokens and raises those of a lock. What cannot be meant is refused, and says
// why.
func TestTokenFloor(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	holder, release := w.startHolder("a")
	shown := func() (token, floor int64) {
		r := w.runProgram("token", "show", "a", "--json")
		r.check(t, 0)
		var v struct {
			Lock         string
			Token, Floor int64
			ByClock      bool `json:"floor_by_clock"`
		}
		if err := json.Unmarshal([]byte(r.out), &v); err != nil || v.Lock != "a" || !v.ByClock || v.Floor < 1 {
			t.Errorf("%v; %s", err, r.description)
		}
		return v.Token, v.Floor
	}
	held, _ := shown()
	next := fmt.Sprint(held + time.Hour.Microseconds())
	w.runProgram("token", "floor", "a", "--at-least", next).check(t, 0,
		fmt.Sprintf("keeps its token %d until it has released a", held))
	for _, c := range []struct {
		args  string
		code  int
		words string
	}{
		{"", 64, "show or floor"},
		{"raise", 64, "show and floor"},
		{"show", 64, "NAME is missing"},
		{"floor a", 64, "--at-least is missing"},
		{"floor --at-least 5", 64, "give one NAME, or --all"},
		{"floor a b --at-least 5", 64, "give one NAME, or --all"},
		{"floor a --all --at-least 5", 64, "either a NAME or --all"},
		{"floor a --at-least x", 64, "not a number"},
		{"floor a --at-least 0", 64, "at least 1"},
		{"floor a --at-least -7", 64, "at least 1"},
		{"floor a --at-least -9223372036854775808", 64, "at least 1"},
		{"floor a --force --at-least 9007199254740991", 64, "at most"},
		{"floor a --at-least 9007199254740992000000", 64, "too large"},
		{"floor a --at-least 8000000000000000", 64, "years ahead of the tokens of a: is it mistyped?"},
		{"floor --all --at-least 8000000000000000", 64, "until then, keep those"},
	} {
		w.runProgram(append([]string{"token"}, strings.Fields(c.args)...)...).check(t, c.code, c.words)
	}
	if r := w.runProgram("token", "floor", "--all", "--at-least", "5"); r.code != 0 || !strings.Contains(r.out, "on any lock") {
		t.Error(r.description)
	}
	if token, _ := shown(); token != held+time.Hour.Microseconds()-1 {
		t.Errorf("the largest token is %d, want one less than %s", token, next)
	}
	if r := w.runProgram("token", "show", "a"); r.code != 0 || !strings.Contains(r.out, "largest token of a ") {
		t.Error(r.description)
	}
	release()
	holder.wait().check(t, 0)
	if r := w.runProgram("run", "a", "sh", "-c", "echo $HOLDFAST_TOKEN"); r.code != 0 || r.out != next+"\n" {
		t.Errorf("want the token %s; %s", next, r.description)
	}
	if r := w.runProgram("token", "floor", "b", "--force", "--at-least", "8000000000000000"); r.code != 0 {
		t.Error(r.description)
	}
	if r := w.runProgram("run", "b", "sh", "-c", "echo $HOLDFAST_TOKEN"); r.out != "8000000000000000\n" {
		t.Error(r.description)
	}
}

func TestListAndShow(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	if r := w.runProgram("list"); r.code != 0 || r.out != "" {
		t.Errorf("want nothing; %s", r.description)
	}
	if r := w.runProgram("show", "a"); r.code != 0 || r.out != "a is free\n" {
		t.Error(r.description)
	}
	_, _ = w.startHolder("job/a")
	_, _ = w.startHolder("job/odd \n\x1b[31mname ü", "--shared")
	_, _ = w.startHolder("other", "--limit", "5", "--permits", "2")
	all := w.runProgram("list")
	all.check(t, 0)
	for _, line := range []string{
		`(?m)^NAME +KIND +STATE +HOLDERS +WAITING +HELD BY +NOTE +SINCE +EXPIRES$`,
		`(?m)^job/a +mutex +held +1 +- +\S+ holdfast\[\d+\] +sh +\d{4}-\d\d-\d\dT\S+ \((now|\S+ ago)\) +in \d+s$`,
		`(?m)^"job/odd \\n\\x1b\[31mname ü" +read-write lock +held +1 +0 `,
		`(?m)^other +semaphore of 5 +held +1 +0 `,
	} {
		if !regexp.MustCompile(line).MatchString(all.out) {
			t.Errorf("no line like %s in\n%s", line, all.out)
		}
	}
	for _, each := range []struct {
		args  []string
		names string
	}{{[]string{"list", "--json"}, "job/a|job/odd \n\x1b[31mname ü|other|"},
		{[]string{"show", "job/a", "--json"}, "job/a|"}} {
		r, names := w.runProgram(each.args...), ""
		r.check(t, 0)
		for line := range strings.Lines(r.out) {
			var lock struct {
				Lock    string
				Token   int64
				Holders []struct{ Owner, Ref string }
			}
			err := json.Unmarshal([]byte(line), &lock)
			if err != nil || len(lock.Holders) != 1 || lock.Holders[0].Ref == "" || lock.Holders[0].Owner == "" {
				t.Errorf("%v: %v: %s", each.args, err, line)
			}
			names += lock.Lock + "|"
		}
		if names != each.names {
			t.Errorf("%v shows %q", each.args, names)
		}
	}
	if r := w.runProgram("show", "free", "--json"); r.code != 0 || !strings.Contains(r.out, `"holders":[]`) {
		t.Errorf("no free lock; %s", r.description)
	}
	if some := w.runProgram("list", "job/"); strings.Count(some.out, "\n") != 3 || strings.Contains(some.out, "other") {
		t.Errorf("want two; %s", some.description)
	}
	for _, c := range []struct{ name, line string }{
		{"job/a", `(?m)^holds +\S+ holdfast\[\d+\] +sh +1 +\d{10,} +\S+ \(.*\) +in \d+s +\S+$`},
		{"job/odd \n\x1b[31mname ü", `(?m)^holds .* sh +reader +\d`},
		{"other", `(?m)^holds .* sh +2 +\d`},
	} {
		if r := w.runProgram("show", c.name); !regexp.MustCompile(c.line).MatchString(r.out) {
			t.Errorf("no line like %s; %s", c.line, r.description)
		}
	}
}

func TestListWithUnreadableLock(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("a")
	w.runProgram("run", "b", "true").check(t, 0)
	w.corruptLock("b")
	r := w.runProgram("list")
	r.check(t, 69, "cannot be read")
	if !strings.Contains(r.out, "\na ") {
		t.Errorf("want a listed; %s", r.description)
	}
	w.runProgram("show", "b").check(t, 69, "cannot be read")
	w.runProgram("run", "b", "true").check(t, 69, "cannot be read")
	release()
}

// corruptLock overwrites the records of a lock with invalid data.
func (w *workspace) corruptLock(name string) {
	w.Helper()
	dir := w.filePath("store/locks/" + name)
	files, err := os.ReadDir(dir)
	if err != nil || len(files) == 0 {
		w.Fatalf("no records of %s: %v", name, err)
	}
	for _, f := range files {
		w.writeFile("store/locks/"+name+"/"+f.Name(), "holdfast/99 nonsense of another version")
	}
}

func TestBreak(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.runProgram("break", "a").check(t, 1, "nobody holds a")
	first, _ := w.startHolder("a", "--shared", "--ttl", "10s")
	second, release := w.startHolder("a", "--shared", "--ttl", "10s")
	both := w.runProgram("break", "a")
	both.check(t, 64, "a has 2 holders", "--holder")
	refs := regexp.MustCompile(`(\S+) \(\S+ holdfast\[(\d+)\]\)`).FindAllStringSubmatch(both.err, -1)
	if len(refs) != 2 {
		t.Fatalf("want two refs; %s", both.description)
	}
	w.runProgram("break", "a", "--holder", "nonsense").check(t, 1, "there is no claim nonsense on a")
	w.runProgram("break", "a", "--holder", refs[0][1], "--force").check(t, 0, "at once", "holdfast["+refs[0][2]+"]")
	w.runProgram("break", "a", "--holder", refs[0][1]).check(t, 1, "no claim")
	first.wait().check(t, 76)
	release()
	second.wait().check(t, 0)
}

// TestBreakReason: the holder learns who has broken its lock, how, and why.
func TestBreakReason(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		flags []string
		want  string
	}{
		"a": {[]string{"--reason", "INC-123"}, ": INC-123"},
		"b": {[]string{"--reason", "INC-123", "--force"}, ", by force: INC-123"},
		"c": {nil, " (store "},
	} {
		r := w.startProgram("hold", "--ttl", "15s", name).awaitOutput("\n")
		w.runProgram(append([]string{"break", name}, c.flags...)...).check(t, 0)
		all.Go(func() { r.wait().check(t, 76, name+" is lost: an operator broke it: "+operatorName()+c.want) })
	}
	all.Wait()
	w.runProgram("break", "a", "--reason", "two\nlines").check(t, 64, "one line of printable characters")
	w.runProgram("break", "a", "--reason", strings.Repeat("x", 121)).check(t, 64, "may have 120")
}

func TestBreakWaiter(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, _ = w.startHolder("a", "--limit", "2")
	_, _ = w.startHolder("a", "--limit", "2")
	waiter := w.startProgram("run", "--limit", "2", "a", "true")
	w.awaitWaiters("a", 1)
	ref := regexp.MustCompile(`(\S+) \(\S+ holdfast\[\d+], waiting\)`).FindStringSubmatch(w.runProgram("break",
		"a").err)
	if ref == nil {
		t.Fatal("the waiter is not listed")
	}
	got := w.runProgram("break", "a", "--holder", ref[1])
	lost := fmt.Sprintf("holdfast[%d] has lost its place in the queue for a", waiter.cmd.Process.Pid)
	if got.code != 0 || !strings.Contains(got.out, lost) {
		t.Error(got.description)
	}
}

// TestRequestRelease: the holder is notified and keeps the lock.
func TestRequestRelease(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.runProgram("request-release", "a").check(t, 1, "nobody holds a")
	holder, release := w.startHolder("a", "--ttl", "15s", "--events", "record")
	got := w.runProgram("request-release", "a")
	message := fmt.Sprintf("holdfast[%d] is asked to release a", holder.cmd.Process.Pid)
	if got.code != 0 || !strings.Contains(got.out, message) {
		t.Error(got.description)
	}
	holder.awaitTrue("the request", func() bool {
		return strings.Contains(holder.readStderr(), "somebody requests the release of a")
	})
	shown := w.runProgram("show", "--json", "a")
	ref := regexp.MustCompile(`"ref":"([^"]+)".*"release_requested":true`).FindStringSubmatch(shown.out)
	if ref == nil {
		t.Fatalf("want the request shown; %s", shown.description)
	}
	w.runProgram("request-release", "a", ref[1]).check(t, 0)
	w.runProgram("request-release", "a", "nonsense").check(t, 1, "there is no claim nonsense on a")
	w.runProgram("request-release", "a", "").check(t, 64, "the REF is empty")
	w.runProgram("request-release").check(t, 64, "NAME is missing")
	w.runProgram("request-release", "a", "b", "c").check(t, 64, "too many arguments: 3 instead of 2")
	w.runProgram("run", "-n", "a", "true").check(t, 75)
	release()
	holder.wait().check(t, 0)
	if _, events := w.readRecord(w.filePath("record")); !slices.Contains(events, "release_requested") {
		t.Errorf("events %q", events)
	}
	_, _ = w.startHolder("b", "--shared")
	_, _ = w.startHolder("b", "--shared")
	w.runProgram("request-release", "b").check(t, 64, "b has 2 holders; give the REF of one: ")
}

// breaksWaitsStore is a store on which an operator breaks each claim that waits.
type breaksWaitsStore struct{ driver.Store }

func (breaksWaitsStore) Acquire(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, &driver.LossError{Cause: driver.LossBroken}
}

func TestWaitEndedByOperator(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(breaksWaitsStore{memory.New(nil).Open()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = (&lockRequest{name: "a", kind: holdfast.KindMutex}).acquireWithinLimit(t.Context(), client)
	exit := storeError(err)
	if exit.code != 75 || exit.outcomeOrDefault() != outcomeNotAcquired ||
		!strings.Contains(exit.Error(), "the wait for a was ended") {
		t.Errorf("exit %d, %s: %v", exit.code, exit.outcomeOrDefault(), exit)
	}
}

// hangsFirstStore is a store whose Inspect hangs until its context ends, while that has no deadline: during a wait. The
// last try after the wait has one.
type hangsFirstStore struct{ driver.Store }

func (s *hangsFirstStore) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	if _, limited := ctx.Deadline(); !limited {
		<-ctx.Done()
		return driver.Lock{}, ctx.Err()
	}
	return s.Store.Inspect(ctx, name)
}

func TestWaitLimitDuringInspect(t *testing.T) {
	t.Parallel()
	m := memory.New(nil)
	holder, err1 := holdfast.New(m.Open(), nil)
	client, err2 := holdfast.New(&hangsFirstStore{Store: m.Open()}, nil)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	defer client.Close()
	if _, err := holder.Mutex("a", nil).Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	limit := waitLimit{limited: true, limit: 50 * time.Millisecond}
	r := &lockRequest{name: "a", kind: holdfast.KindRW, shared: true, waitLimit: limit, began: time.Now()}
	_, err := r.acquireWithinLimit(t.Context(), client)
	if exit := storeError(err); exit.code != 75 ||
		!strings.Contains(exit.Error(), "a was not free within 50ms; it is held by") {
		t.Errorf("exit %d: %v", exit.code, exit)
	}
}

// TestStores: stores shows what the store in use promises, and which stores there are.
func TestStores(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.runProgram("stores")
	for _, want := range []string{"store", w.dir, "fence-safe", "run ledger ", "65536 bytes", "stores known: azure, consul, dynamodb, etcd, file, gcs, kubernetes, mariadb, mysql, nats, postgres, "} {
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("want %q; %s", want, r.description)
		}
	}
}

func TestVersionAndCompletion(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	version, platform := w.runProgram("version"), runtime.GOOS+"/"+runtime.GOARCH+"\n"
	if version.code != 0 || !strings.HasPrefix(version.out, "holdfast ") || !strings.HasSuffix(version.out, platform) {
		t.Error(version.description)
	}
	if r := w.runProgram("--version"); r.code != 0 || r.out != w.runProgram("version").out {
		t.Error(r.description)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if r := w.runProgram("completion", shell); r.code != 0 || !strings.Contains(r.out, "holdfast") {
			t.Errorf("%s: exit %d", shell, r.code)
		}
	}
	if r := w.runProgram("__complete", "run", "--sh"); r.code != 0 || !strings.Contains(r.out, "--shared") {
		t.Error(r.description)
	}
}
