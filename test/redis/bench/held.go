package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis9 "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// All leases are renewed every third of their TTL.
const (
	heldTTL  = 9 * time.Second
	heldBeat = heldTTL / 3
)

// keepers acquire n locks, and keep them until the function that they return is called.
var keepers = []struct {
	name string
	keep func(ctx context.Context, addr string, n int) (end func(), err error)
}{
	{"holdfast", keepHoldfast},
	{"redsync, a goroutine each", keepRedsync},
	{"redislock, a goroutine each", keepRedislock},
	{"rueidislock", keepRueidislock},
}

// measureHeldLeases measures what held leases cost, during three renewals of each.
func measureHeldLeases(ctx context.Context, server *redistest.Server, name string) error {
	fmt.Printf("\n%-40s %10s %12s %14s %14s %14s\n", name, "B/lease", "goroutines", "scripts/min", "client us/s",
		"server us/s")
	for _, k := range keepers {
		if !matchesOnly(k.name, "holdfast", "redsync", "redislock", "rueidislock") {
			continue
		}
		if _, err := server.Do("FLUSHALL"); err != nil {
			return err
		}
		heap, goroutines := memoryInUse(), runtime.NumGoroutine()
		end, err := k.keep(ctx, server.Addr, *held)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		time.Sleep(heldBeat) // the first renewals come just after the acquisitions, and are not typical
		each, more := float64(memoryInUse()-heap)/float64(*held), runtime.NumGoroutine()-goroutines
		scripts, theirs, ours, start := scriptCalls(server), serverCPU(server), clientCPU(), time.Now()
		time.Sleep(3 * heldBeat)
		perSecond := func(seconds float64) float64 { return seconds * 1e6 / time.Since(start).Seconds() / float64(*held) }
		client, srv := perSecond((clientCPU() - ours).Seconds()), perSecond(serverCPU(server)-theirs)
		perMinute := float64(scriptCalls(server)-scripts) / time.Since(start).Minutes()
		end()
		fmt.Printf("%-40s %10.0f %12d %14.0f %14.1f %14.1f\n", k.name, each, more, perMinute, client, srv)
	}
	return nil
}

// scriptCalls is the number of scripts that the server was sent. All clients here renew by scripts.
func scriptCalls(s *redistest.Server) (n int64) {
	info, _ := s.Do("INFO", "commandstats")
	for line := range strings.Lines(info) {
		var calls int64
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d", &calls); err == nil {
			n += calls
		} else if _, err := fmt.Sscanf(line, "cmdstat_eval:calls=%d", &calls); err == nil {
			n += calls
		}
	}
	return n
}

// memoryInUse is the memory in use after a garbage collection: heap and stacks.
func memoryInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func heldKey(i int) string { return fmt.Sprint("held", i) }

func keepHoldfast(ctx context.Context, addr string, n int) (func(), error) {
	c, err := holdfast.Open(ctx, "redis://"+addr, nil)
	if err != nil {
		return nil, err
	}
	for i := range n {
		if _, err := c.Mutex(heldKey(i), &holdfast.LockOptions{TTL: heldTTL}).Lock(ctx); err != nil {
			return nil, err
		}
	}
	return func() { _ = c.Close() }, nil
}

// renewUntilDone calls renew each third of the TTL, in a goroutine of its own, until ctx ends.
func renewUntilDone(ctx context.Context, all *sync.WaitGroup, renew func(context.Context) error) {
	all.Go(func() {
		tick := time.NewTicker(heldBeat)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = renew(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
}

func keepRedsync(ctx context.Context, addr string, n int) (func(), error) {
	c := goredis9.NewClient(&goredis9.Options{Addr: addr})
	rs := redsync.New(goredis.NewPool(c))
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	end := func() { cancel(); all.Wait(); _ = c.Close() }
	for i := range n {
		m := rs.NewMutex(heldKey(i), redsync.WithExpiry(heldTTL))
		if err := m.LockContext(ctx); err != nil {
			end()
			return nil, err
		}
		renewUntilDone(ctx, &all, func(ctx context.Context) error { _, err := m.ExtendContext(ctx); return err })
	}
	return end, nil
}

func keepRedislock(ctx context.Context, addr string, n int) (func(), error) {
	c := goredis9.NewClient(&goredis9.Options{Addr: addr})
	locks := redislock.New(c)
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	end := func() { cancel(); all.Wait(); _ = c.Close() }
	for i := range n {
		l, err := locks.Obtain(ctx, heldKey(i), heldTTL, nil)
		if err != nil {
			end()
			return nil, err
		}
		renewUntilDone(ctx, &all, func(ctx context.Context) error { return l.Refresh(ctx, heldTTL, nil) })
	}
	return end, nil
}

func keepRueidislock(ctx context.Context, addr string, n int) (func(), error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{KeyMajority: 1, NoLoopTracking: true, KeyValidity: heldTTL,
		ExtendInterval: heldBeat,
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}}})
	if err != nil {
		return nil, err
	}
	for i := range n {
		_, _, err := l.TryWithContext(ctx, heldKey(i)) // a wait might never end: see openRueidislock
		for try := 0; err != nil && try < 100 && ctx.Err() == nil; try++ {
			time.Sleep(10 * time.Millisecond)
			_, _, err = l.TryWithContext(ctx, heldKey(i))
		}
		if err != nil {
			l.Close()
			return nil, err
		}
	}
	return l.Close, nil
}
