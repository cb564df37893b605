package postgres

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestOpeningASilentServer: opening does not wait forever for a server that accepts connections and never answers.
func TestOpeningASilentServer(t *testing.T) {
	t.Parallel()
	storetest.OpenSilentServer(t, "postgres://u:s3cret@HOST/db?sslmode=disable&timeout=100ms")
}

// TestURL: each option of the URL has its effect. Errors about a URL do not show its secrets.
func TestURL(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config, o := parseURL(t, "postgres://u@h:7,i:8/db?schema=s&table=t&create=true&layout=shedlock&timeout=2s&pool_max_conns=9&sslmode=disable"+
		"&target_session_attrs=read-write&password-file="+file)
	c := config.ConnConfig
	if o.Schema != "s" || o.Table != "t" || !o.Create || o.Layout != LayoutShedLock || o.Timeout != 2*time.Second {
		t.Errorf("%+v", o)
	}
	if c.Host != "h" || c.Port != 7 || len(c.Fallbacks) == 0 || c.Database != "db" || c.User != "u" ||
		c.Password != "s3cret" || config.MaxConns != 9 {
		t.Errorf("%+v", c)
	}
	if p, err := o.resolveLocation(); err != nil || p.locksTable != `"s"."t"` {
		t.Errorf("%+v %v", p, err)
	}
	for raw, any := range map[string]bool{
		"postgres://u@h/db": true, "postgres://u@h,i/db": false, "postgres://u@h,i/db?target_session_attrs=any": true,
	} {
		if config, _ := parseURL(t, raw); any != (config.ConnConfig.ValidateConnect == nil) {
			t.Errorf("%s: any server will do: %v", raw, !any)
		}
	}
	for _, raw := range []string{
		"postgres://u:s3cret@h/db?nope=1", "postgres://u:s3cret@h/db?layout=other", "postgres://u:s3cret@h/db?create=perhaps",
		"postgres://u:s3cret@h/db?timeout=1", "postgres://u:s3cret@h/db?sslmode=nope", "postgres://u:s3cret@h:x/db",
		"postgres://u:s3cret@h/db?table=" + strings.Repeat("t", 58), "postgres://u@h/db?password-file=/does/not/exist",
		"postgres://u:s3cret@h/db?pool_max_conns=none", "postgres://u@h/db?sslpassword=s3cret&sslmode=nope", "postgres://u:s3cret@h/db?statement_timeout=1",
	} {
		if _, err := driver.Open(t.Context(), raw); !errors.Is(err, driver.ErrInvalid) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := driver.Open(ctx, "postgres://u:s3cret@127.0.0.1:1/db?sslmode=disable"); err == nil ||
		driverutil.IsFinal(err) || strings.Contains(err.Error(), "s3cret") ||
		!strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody listens there: %v", err)
	}
	s := mustOpen(t, strings.Replace(freshURL(t, sharedServer(t)), "test@", "test:s3cret@", 1))
	if i := s.Info(); strings.Contains(i.Store, "s3cret") || strings.Contains(i.Store, "test@") ||
		!strings.HasPrefix(i.Store, "postgres://127.0.0.1:") {
		t.Errorf("it is shown as %s", i.Store)
	}
}

// TestPassfile: while the passfile is missing, or has no line for the user, the password is the one that it had, and
// the problem names the file. What else the URL's files have now is used.
func TestPassfile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "passfile")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("h:7:db:u:one\n")
	config, o := parseURL(t, "postgres://u@h:7/db?sslmode=disable&passfile="+path)
	for _, c := range []struct{ text, want, problem string }{{"-", "one", path}, {"h:7:db:u:two\n", "two", ""},
		{"", "two", path}, {"h:7:db:", "two", path}, {"h:7:db:u:three\n", "three", ""}} {
		if c.text == "-" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		} else {
			write(c.text)
		}
		conn := config.ConnConfig.Copy()
		if err := config.BeforeConnect(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		p := o.secrets[1].Problem()
		if conn.Password != c.want || (p != nil) != (c.problem != "") || p != nil && !strings.Contains(p.Error(), c.problem) {
			t.Errorf("%q: %q, %v", c.text, conn.Password, p)
		}
	}
}

// TestOpeningDuringRestart: opening succeeds although the server is unreachable for a moment, refuses connections,
// closes them, or is starting up.
func TestOpeningDuringRestart(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	url := s.URL("test") + "?sslmode=disable&create=true"
	mustOpen(t, url)
	s.Kill()
	came := make(chan error, 1)
	go func() {
		st, err := driver.Open(t.Context(), url)
		if err == nil {
			st.Close()
		}
		came <- err
	}()
	select {
	case err := <-came:
		t.Errorf("while the server is away: %v", err)
		came <- err
	case <-time.After(300 * time.Millisecond):
	}
	if err := s.StartAgain(); err != nil {
		t.Fatal(err)
	}
	if err := <-came; err != nil {
		t.Errorf("an opening during a restart: %v", err)
	}
	for _, layout := range []string{"", "shedlock"} {
		link, err := servertest.NewLink(s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer link.Close()
		for n := range 6 { // each step of opening meets a connection that is reset
			var replies atomic.Int64
			link.SetFaults(func() (time.Duration, bool) { return 0, replies.Add(1) == int64(2*n+1) })
			st, err := driver.Open(t.Context(), strings.Replace(url, s.Addr, link.Addr, 1)+"&layout="+layout)
			if err != nil {
				t.Fatalf("an opening that met a reset: %v", err)
			}
			st.Close()
		}
	}
}
