package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// stopTTL is the TTL of the locks of processes that are stopped.
const stopTTL = time.Second

// holdUntilKilled is a process that acquires a lock and prints its token. After that it prints a line whenever its
// lease becomes valid or invalid.
func holdUntilKilled(addr, name string) error {
	c, err := holdfast.Open(context.Background(), "redis://"+addr, nil)
	if err != nil {
		return err
	}
	m := c.Mutex(name, &holdfast.LockOptions{TTL: stopTTL})
	l, err := m.Lock(context.Background())
	for errors.Is(err, holdfast.ErrUncertain) || errors.Is(err, holdfast.ErrLost) { // the answer took longer than the TTL
		l, err = m.Lock(context.Background())
	}
	if err != nil {
		return err
	}
	fmt.Println("token", l.Token())
	var last time.Time
	for {
		at := time.Now() // before the check, since the process may be stopped in between
		if !l.Valid() {
			break
		}
		last = at
		time.Sleep(time.Millisecond)
	}
	fmt.Println("lost", last.UnixMicro(), l.Err())
	return nil
}

// TestStoppedProcess: a process is stopped while it holds a lock. When it goes on, it does not trust its lease any
// more, and the last time that it did was before the next claim was granted.
func TestStoppedProcess(t *testing.T) {
	n := max(*rounds/25, 4)
	server, err := redistest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	c, err := holdfast.Open(t.Context(), "redis://"+server.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var worst time.Duration
	for i := range n {
		name := fmt.Sprint("stop", i)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "INTEROP=hold", "REDIS="+server.Addr, "LOCK="+name)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := servertest.StartProcess(cmd); err != nil {
			t.Fatal(err)
		}
		defer cmd.Process.Kill() // even if it is stopped
		lines := bufio.NewScanner(out)
		if !lines.Scan() {
			t.Fatal("the holder prints nothing")
		}
		token, _ := strconv.ParseInt(strings.TrimPrefix(lines.Text(), "token "), 10, 64)
		time.Sleep(time.Duration(i*97%700) * time.Millisecond) // at some time between two renewals
		_ = cmd.Process.Signal(syscall.SIGSTOP)
		l, err := c.Mutex(name, nil).Lock(t.Context())
		granted := time.Now()
		_ = cmd.Process.Signal(syscall.SIGCONT)
		if err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), "lost ") {
			t.Fatalf("the holder prints %q", lines.Text())
		}
		fields := strings.Fields(lines.Text())
		us, _ := strconv.ParseInt(fields[1], 10, 64)
		overlap := time.UnixMicro(us).Sub(granted)
		worst = max(worst, overlap)
		if overlap > 0 || l.Token() <= token {
			t.Errorf("it trusted its lease for %v too long; token %d after %d", overlap, l.Token(), token)
		}
		_ = cmd.Wait()
		_ = l.Release()
	}
	t.Logf("%d holders stopped: two holders for %v at most", n, max(worst, 0))
}
