// Package redis runs Holdfast and other clients against each other on one Redis lock, each in processes of its own, and
// counts how many hold it at the same time.
package redis

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis9 "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/storetest"
	_ "github.com/holdfast-go/holdfast/store/redis"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

var (
	rounds = flag.Int("rounds", 100, "how often each process takes the lock")
	turns  = flag.Int("turns", 3, "how often a client among busy ones takes the lock")
	work   = flag.Duration("work", 20*time.Millisecond, "how long busy clients hold the lock")
	maven  = flag.Bool("maven", false, "test with Redisson, which Maven fetches") // CI lacks Maven
)

// key is the lock's key, for the clients that use the name as it is.
const key = "interop"

// TestMain becomes a worker process if the environment says so.
func TestMain(m *testing.M) {
	who := os.Getenv("INTEROP")
	if who == "" {
		flag.Parse()
		code := m.Run()
		if built != "" {
			os.RemoveAll(built)
		}
		os.Exit(code)
	}
	var err error
	if who == "hold" {
		err = holdUntilKilled(os.Getenv("REDIS"), os.Getenv("LOCK"))
	} else {
		w := worker{who: who, untilEnd: os.Getenv("UNTIL_END") != ""}
		w.rounds, _ = strconv.Atoi(os.Getenv("ROUNDS"))
		w.work, _ = time.ParseDuration(os.Getenv("WORK"))
		w.crowd = os.Getenv("CROWD")
		err = w.run(os.Getenv("REDIS"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, who, err)
		os.Exit(1)
	}
}

// lockers has the clients by name. Each acquires the lock and returns the function that releases it.
var lockers = map[string]func(addr string) (func(ctx context.Context) (unlock func() error, err error), error){
	"holdfast": func(addr string) (func(context.Context) (func() error, error), error) {
		return holdfastAt("redis://" + addr)
	},
	"holdfast-fair": func(addr string) (func(context.Context) (func() error, error), error) {
		return holdfastFair("redis://" + addr)
	},
	"holdfast-turns": func(addr string) (func(context.Context) (func() error, error), error) {
		return holdfastFair("redis://" + addr + "?foreign-turn=250ms") // as redsync polls
	},
	"holdfast-rueidislock": func(addr string) (func(context.Context) (func() error, error), error) {
		return holdfastAt("redis://" + addr + "?prefix=rueidislock:0:")
	},
	"holdfast-redisson": func(addr string) (func(context.Context) (func() error, error), error) {
		return holdfastAt("redis://" + addr + "?layout=redisson")
	},
	"redsync": func(addr string) (func(context.Context) (func() error, error), error) {
		rs := redsync.New(goredis.NewPool(goredis9.NewClient(&goredis9.Options{Addr: addr})))
		return func(ctx context.Context) (func() error, error) {
			m := rs.NewMutex(key, redsync.WithTries(1_000_000), redsync.WithRetryDelay(3*time.Millisecond))
			return func() error { _, err := m.UnlockContext(ctx); return err }, m.LockContext(ctx)
		}, nil
	},
	"redsync-usual": func(addr string) (func(context.Context) (func() error, error), error) {
		rs := redsync.New(goredis.NewPool(goredis9.NewClient(&goredis9.Options{Addr: addr})))
		return func(ctx context.Context) (func() error, error) {
			m := rs.NewMutex(key, redsync.WithTries(1_000_000))
			return func() error { _, err := m.UnlockContext(ctx); return err }, m.LockContext(ctx)
		}, nil
	},
	"redislock": func(addr string) (func(context.Context) (func() error, error), error) {
		c := redislock.New(goredis9.NewClient(&goredis9.Options{Addr: addr}))
		return func(ctx context.Context) (func() error, error) {
			l, err := c.Obtain(ctx, key, 10*time.Second,
				&redislock.Options{RetryStrategy: redislock.LinearBackoff(3 * time.Millisecond)})
			return func() error { return l.Release(ctx) }, err
		}, nil
	},
	"rueidislock": func(addr string) (func(context.Context) (func() error, error), error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyMajority: 1, NoLoopTracking: true})
		return func(ctx context.Context) (func() error, error) {
			for {
				// rueidislock may miss the release of a lock, even by its own kind (v1.0.79), and would sleep on. So it
				// is woken.
				try, giveUp := context.WithCancel(ctx)
				alarm := time.AfterFunc(2*time.Second, giveUp)
				_, cancel, err := l.WithContext(try, key)
				if alarm.Stop() && err == nil {
					return func() error { cancel(); giveUp(); return nil }, nil
				}
				giveUp()
				if err == nil {
					cancel()
				} else if ctx.Err() != nil || !errors.Is(err, context.Canceled) {
					return nil, err
				}
			}
		}, err
	},
}

func holdfastAt(url string) (func(context.Context) (func() error, error), error) {
	return holdfastWith(url, nil)
}

func holdfastFair(url string) (func(context.Context) (func() error, error), error) {
	return holdfastWith(url, &holdfast.LockOptions{Fair: true})
}

func holdfastWith(url string, opts *holdfast.LockOptions) (func(context.Context) (func() error, error), error) {
	c, err := holdfast.Open(context.Background(), url, nil)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (func() error, error) {
		l, err := c.Mutex(key, opts).Lock(ctx)
		if err != nil {
			return nil, err
		}
		return l.Release, nil
	}, nil
}

// endKey is the key on the witness that ends the contention.
const endKey = "witness:over"

// worker is a process that takes the lock again and again.
type worker struct {
	who      string        // one of the lockers
	rounds   int           // how often it takes the lock at least
	untilEnd bool          // it goes on until the witness says that the others have finished, so that they compete with it
	work     time.Duration // how long it holds the lock; if that is not 0, it wants the lock again at once
	crowd    string        // if not empty: it wants the lock again when this other client has had it in between
}

// command is the command of the process.
func (w worker) command(addr string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "INTEROP="+w.who, "REDIS="+addr, "ROUNDS="+strconv.Itoa(w.rounds), "WORK="+w.work.String(),
		"CROWD="+w.crowd)
	if w.untilEnd {
		cmd.Env = append(cmd.Env, "UNTIL_END=1")
	}
	return cmd
}

// run counts at a witness how many workers hold the lock.
func (w worker) run(addr string) error {
	lock, err := lockers[w.who](addr)
	if err != nil {
		return err
	}
	witness := goredis9.NewClient(&goredis9.Options{Addr: addr})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for i := 0; i < w.rounds || w.untilEnd; i++ {
		if done, err := witness.Exists(ctx, endKey).Result(); err != nil {
			return err
		} else if i >= w.rounds && done == 1 {
			break
		}
		unlock, err := lock(ctx)
		if err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		inside, err := witness.Incr(ctx, "witness:inside").Result()
		if err != nil {
			return err
		}
		if inside != 1 {
			witness.Incr(ctx, "witness:overlaps")
		}
		witness.Incr(ctx, "witness:"+w.who)
		time.Sleep(w.work)
		turn := ""
		if w.crowd != "" {
			if turn, err = witness.Get(ctx, "witness:"+w.crowd).Result(); err != nil {
				return err
			}
		}
		witness.Decr(ctx, "witness:inside")
		if err := unlock(); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		for next := turn; w.crowd != "" && next == turn; time.Sleep(time.Millisecond) {
			if next, err = witness.Get(ctx, "witness:"+w.crowd).Result(); err != nil {
				return err
			}
		}
		if w.work == 0 {
			time.Sleep(time.Millisecond) // so that the others get the lock too: most of them are not fair
		}
	}
	return nil
}

// testContention runs processes of two clients against each other on a server of their own, and counts. The foreign
// client begins when ours has had the lock, and ours ends when the foreign one has finished.
func testContention(t *testing.T, ours string, foreign string, start func(addr string) *exec.Cmd) {
	t.Helper()
	server, err := redistest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	run := func(cmd *exec.Cmd) {
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v: %s", cmd.Args[0], err, said)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { run(worker{who: ours, rounds: *rounds, untilEnd: true}.command(server.Addr)) })
	if err := redistest.Until(t.Context(), func() bool {
		n, err := server.Do("EXISTS", "witness:"+ours)
		return err == nil && n == ":1"
	}); err != nil {
		t.Fatalf("%s does not get the lock: %v", ours, err)
	}
	began := time.Now()
	run(start(server.Addr))
	if _, err := server.Do("SET", endKey, "1"); err != nil {
		t.Error(err)
	}
	wg.Wait()
	get := func(k string) int {
		v, err := server.Do("GET", "witness:"+k)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(v)
		return n
	}
	t.Logf("%s %d rounds, %s %d rounds in %v; two holders at the same time: %d", ours, get(ours), foreign, get(foreign),
		time.Since(began).Round(time.Millisecond), get("overlaps"))
	if get("overlaps") != 0 || get(ours) < *rounds || get(foreign) != *rounds {
		t.Errorf("want %d rounds of each, and no overlap", *rounds)
	}
}

// TestGoClientsExclude: the Go clients of the plain layout exclude us, and we exclude them.
func TestGoClientsExclude(t *testing.T) {
	for _, foreign := range []string{"redsync", "redislock"} {
		testContention(t, "holdfast", foreign, worker{who: foreign, rounds: *rounds}.command)
	}
	testContention(t, "holdfast-rueidislock", "rueidislock", worker{who: "rueidislock", rounds: *rounds}.command)
}

// busyCommand is a process that wants the lock again at once, until the end. With a crowd, it takes the lock *turns
// times, each time after the crowd has had it again.
func busyCommand(who, addr, crowd string) *exec.Cmd {
	n := 0
	if crowd != "" {
		n = *turns
	}
	if who == "redispy" {
		return exec.Command(python, "testdata/worker.py", addr, strconv.Itoa(n), fmt.Sprint(work.Seconds()), crowd)
	}
	return worker{who: who, rounds: n, untilEnd: n == 0, work: *work, crowd: crowd}.command(addr)
}

// testTurns has four processes of one client hold the lock all the time, and waits until one of another client has had
// its turns.
func testTurns(t *testing.T, crowd, single string) {
	t.Helper()
	server, err := redistest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	get := func(k string) int {
		v, err := server.Do("GET", "witness:"+k)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(v)
		return n
	}
	run := func(cmd *exec.Cmd) {
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v: %s", cmd.Args[0], err, said)
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { run(busyCommand(crowd, server.Addr, "")) })
	}
	if err := redistest.Until(t.Context(), func() bool { return get(crowd) >= 20 }); err != nil {
		t.Fatalf("%s does not get the lock: %v", crowd, err)
	}
	began, before := time.Now(), get(crowd)
	run(busyCommand(single, server.Addr, crowd))
	t.Logf("%d turns of %s in %v, and %d of the four %s", get(single), single,
		time.Since(began).Round(time.Millisecond), get(crowd)-before, crowd)
	if _, err := server.Do("SET", endKey, "1"); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if get(single) < *turns || get("overlaps") != 0 {
		t.Errorf("%s had %d turns; two holders at the same time: %d", single, get(single), get("overlaps"))
	}
}

// TestForeignTurns: while four busy clients of ours hand a fair lock over to one another, redsync and redis-py, as they
// poll by default, get their turns if the store has foreign-turn.
func TestForeignTurns(t *testing.T) {
	for _, foreign := range foreignPollers() {
		testTurns(t, "holdfast-turns", foreign)
	}
}

// TestTurnsAmongForeign: while four busy clients of redsync or redis-py hold the lock nearly all the time, a fair claim
// gets its turns.
func TestTurnsAmongForeign(t *testing.T) {
	for _, foreign := range foreignPollers() {
		testTurns(t, foreign, "holdfast-fair")
	}
}

// foreignPollers are foreign clients that poll as they do by default. That of redis-py needs Debian's python3-redis.
func foreignPollers() []string {
	if !hasPython() {
		return []string{"redsync-usual"}
	}
	return []string{"redsync-usual", "redispy"}
}

const python = "/usr/bin/python3"

// hasPython reports whether Debian's python3-redis is installed.
func hasPython() bool { return exec.Command(python, "-c", "import redis").Run() == nil }

// TestRedisPy: redis-py's Lock excludes us, and we exclude it. It needs Debian's python3-redis.
func TestRedisPy(t *testing.T) {
	if !hasPython() {
		t.Skip("needs python3-redis: apt-get install python3-redis")
	}
	testContention(t, "holdfast", "redispy", func(addr string) *exec.Cmd {
		return exec.Command(python, "testdata/worker.py", addr, strconv.Itoa(*rounds))
	})
}

// TestRedisson: Redisson's RLock excludes us, and we exclude it, in its layout.
func TestRedisson(t *testing.T) {
	if !*maven {
		t.Skip("run it with -maven, where Maven is")
	}
	jars := storetest.ClassPath(t, "testdata/pom.xml")
	testContention(t, "holdfast-redisson", "redisson", func(addr string) *exec.Cmd {
		return exec.Command("java", "-Xmx256m", "-cp", jars, "testdata/Worker.java", addr, strconv.Itoa(*rounds))
	})
}
