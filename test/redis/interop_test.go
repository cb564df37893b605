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
	"strings"
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
	n, _ := strconv.Atoi(os.Getenv("ROUNDS"))
	var err error
	if who == "hold" {
		err = holdUntilKilled(os.Getenv("REDIS"), os.Getenv("LOCK"))
	} else {
		err = runWorker(who, os.Getenv("REDIS"), n)
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
	c, err := holdfast.Open(context.Background(), url, nil)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (func() error, error) {
		l, err := c.Mutex(key, nil).Lock(ctx)
		if err != nil {
			return nil, err
		}
		return l.Release, nil
	}, nil
}

// endKey is the key on the witness that ends the contention.
const endKey = "witness:over"

// runWorker takes the lock n times, and counts at a witness how many workers hold it. Holdfast goes on until the
// witness says that the others have finished, so that they compete with it in each of their rounds.
func runWorker(who, addr string, n int) error {
	lock, err := lockers[who](addr)
	if err != nil {
		return err
	}
	witness := goredis9.NewClient(&goredis9.Options{Addr: addr})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	ours := strings.HasPrefix(who, "holdfast")
	for i := 0; i < n || ours; i++ {
		if done, err := witness.Exists(ctx, endKey).Result(); err != nil {
			return err
		} else if ours && i >= n && done == 1 {
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
		witness.Incr(ctx, "witness:"+who)
		witness.Decr(ctx, "witness:inside")
		if err := unlock(); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		time.Sleep(time.Millisecond) // so that the others get the lock too: most of them are not fair
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
	wg.Go(func() { run(workerCommand(ours, server.Addr)) })
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

func workerCommand(who, addr string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "INTEROP="+who, "REDIS="+addr, "ROUNDS="+strconv.Itoa(*rounds))
	return cmd
}

// TestGoClientsExclude: the Go clients of the plain layout exclude us, and we exclude them.
func TestGoClientsExclude(t *testing.T) {
	for _, foreign := range []string{"redsync", "redislock"} {
		testContention(t, "holdfast", foreign, func(addr string) *exec.Cmd { return workerCommand(foreign, addr) })
	}
	testContention(t, "holdfast-rueidislock", "rueidislock",
		func(addr string) *exec.Cmd { return workerCommand("rueidislock", addr) })
}

// TestRedisPy: redis-py's Lock excludes us, and we exclude it. It needs Debian's python3-redis.
func TestRedisPy(t *testing.T) {
	const python = "/usr/bin/python3"
	if err := exec.Command(python, "-c", "import redis").Run(); err != nil {
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
