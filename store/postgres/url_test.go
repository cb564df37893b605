package postgres

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// TestOpeningASilentServer: a server that takes connections and says nothing does not keep an opening for ever.
func TestOpeningASilentServer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var machine pace.Pace
	defer machine.Watch()()
	began := time.Now()
	_, err = driver.Open(t.Context(), "postgres://u:s3cret@"+silent.Addr().String()+"/db?sslmode=disable&timeout=100ms")
	if err == nil || driver.Final(err) || strings.Contains(err.Error(), "s3cret") || time.Since(began) > mostOpening+time.Second+machine.Lost(began) {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// TestURL: each option is read as it says, and what is wrong with a URL is told without its secrets.
func TestURL(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config, o := parse(t, "postgres://u@h:7,i:8/db?schema=s&table=t&create=true&layout=shedlock&timeout=2s&pool_max_conns=9&sslmode=disable"+
		"&target_session_attrs=read-write&password-file="+file)
	c := config.ConnConfig
	if o.Schema != "s" || o.Table != "t" || !o.Create || o.Layout != LayoutShedLock || o.Timeout != 2*time.Second {
		t.Errorf("%+v", o)
	}
	if c.Host != "h" || c.Port != 7 || len(c.Fallbacks) == 0 || c.Database != "db" || c.User != "u" || c.Password != "s3cret" || config.MaxConns != 9 {
		t.Errorf("%+v", c)
	}
	if p, err := o.place(); err != nil || p.locks != `"s"."t"` {
		t.Errorf("%+v %v", p, err)
	}
	for _, raw := range []string{
		"postgres://u:s3cret@h/db?nope=1", "postgres://u:s3cret@h/db?layout=other", "postgres://u:s3cret@h/db?create=perhaps",
		"postgres://u:s3cret@h/db?timeout=1", "postgres://u:s3cret@h/db?sslmode=nope", "postgres://u:s3cret@h:x/db",
		"postgres://u:s3cret@h/db?table=" + strings.Repeat("t", 58), "postgres://u@h/db?password-file=/does/not/exist",
		"postgres://u:s3cret@h/db?pool_max_conns=none", "postgres://u@h/db?sslpassword=s3cret&sslmode=nope", "postgres://u:s3cret@h/db?statement_timeout=1",
	} {
		if _, err := driver.Open(t.Context(), raw); !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if _, err := driver.Open(t.Context(), "postgres://u:s3cret@127.0.0.1:1/db?sslmode=disable"); err == nil || driver.Final(err) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("nobody listens there: %v", err)
	}
	s := opened(t, strings.Replace(freshURL(t, server(t)), "test@", "test:s3cret@", 1))
	if i := s.Info(); strings.Contains(i.Store, "s3cret") || strings.Contains(i.Store, "test@") || !strings.HasPrefix(i.Store, "postgres://127.0.0.1:") {
		t.Errorf("it is shown as %s", i.Store)
	}
}
