package serve

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestSocketMode: a unix socket is for its owner and group, and to make it never changes the umask of the process,
// which counts for all files that other goroutines make.
func TestSocketMode(t *testing.T) {
	t.Parallel()
	umask := func() string {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Error(err)
		}
		_, rest, _ := strings.Cut(string(status), "Umask:\t")
		return rest[:4]
	}
	usual := umask()
	var done atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !done.Load() {
			if now := umask(); now != usual {
				t.Errorf("the umask was %s, and is %s", usual, now)
				return
			}
		}
	}()
	dir := t.TempDir()
	for i := range 500 {
		path := filepath.Join(dir, fmt.Sprint(i))
		l, err := listenPrivately(path)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&^socketMode != 0 || info.Mode().Perm()&0o600 != 0o600 {
			t.Errorf("%v %v", info.Mode(), err)
		}
		l.Close()
	}
	done.Store(true)
	<-ended
}

// TestCallerOfUnixSocket: without tokens, each user of a unix socket is a caller of its own in the audit log and for
// the rate.
func TestCallerOfUnixSocket(t *testing.T) {
	t.Parallel()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	audit := filepath.Join(t.TempDir(), "audit")
	s, path := startUnixServer(t, func(c *Config) { c.Audit, c.Rate = openAudit(t, audit), 1000 })
	s.lock("a")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}}
	answer, err := client.Post("http://localhost/v1/locks/a/break", "application/json", strings.NewReader(`{"force": true}`))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Error(answer.Status)
	}
	log, err := os.ReadFile(audit)
	if want := `"by":"unix ` + me.Username + `"`; err != nil || !strings.Contains(string(log), want) {
		t.Errorf("want %s: %s %v", want, log, err)
	}
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	if s.limits.clients["unix "+me.Username] == nil {
		t.Errorf("%v", s.limits.clients)
	}
}
