package main

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	"github.com/holdfast-go/holdfast/store/mysql/mysqltest"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

var (
	tortureFor    = flag.Duration("torture.for", 5*time.Second, "how long TestTortureStores puts each store under faults")
	tortureStores = flag.String("torture.stores", "redis", "which stores TestTortureStores uses, separated by commas")
)

// tortureStore is a store with servers of its own.
type tortureStore struct {
	url         string
	fault, heal string // command lines for a fault of the servers
	flags       []string
	environment []string
}

// stopOne is a fault of the servers: one of them, by chance, is stopped and continues later.
func (w *workspace) stopOne(s *tortureStore, pids []int) {
	chosen := w.filePath("stopped")
	words := strings.Trim(fmt.Sprint(pids), "[]")
	s.fault = fmt.Sprintf("shuf -n1 -e %s >%s && kill -STOP $(cat %s)", words, chosen, chosen)
	s.heal = fmt.Sprintf("kill -CONT $(cat %s)", chosen)
}

// clusterPIDs are the processes of the members of a cluster.
func clusterPIDs(members []*servertest.Server) (pids []int) {
	for _, m := range members {
		pids = append(pids, m.PID())
	}
	return pids
}

// startTortureStore starts the servers of a kind of store.
func (w *workspace) startTortureStore(kind string) (s tortureStore) {
	w.Helper()
	switch kind {
	case "file":
		s.url = w.store
	case "redis":
		server := startRedis(w.T)
		s.url = "redis://" + server.Addr
		w.stopOne(&s, []int{server.PID()})
	case "etcd":
		c, err := etcdtest.Start(w.Context(), etcdtest.Options{Direct: true})
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(c.Close)
		s.url = "etcd://" + strings.Join(c.Endpoints(), ",")
		w.stopOne(&s, clusterPIDs(c.Servers()))
	case "zookeeper":
		c, err := zktest.Start(w.Context(), zktest.Options{Direct: true})
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(c.Close)
		s.url = "zookeeper://" + strings.Join(c.Endpoints(), ",")
		w.stopOne(&s, clusterPIDs(c.Servers()))
	case "postgres":
		server, err := pgtest.Start("fsync=on")
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(server.Stop)
		s.url = server.URL("test") + "?sslmode=disable&create=true"
	case "mysql":
		server, err := mysqltest.Start("innodb-flush-log-at-trx-commit=1")
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(server.Close)
		s.url = server.URL() + "?create=true"
		w.stopOne(&s, []int{server.PID()})
	case "dynamodb":
		server, err := dynamodbtest.Start(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(func() { server.Stop() })
		s.url = "dynamodb://locks?region=eu-central-1&endpoint=" + url.QueryEscape(server.Endpoint) + "&create=true"
		s.environment = []string{"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test"}
	default:
		w.Fatalf("unknown store %q", kind)
	}
	return s
}

// TestTortureStores: torture of a sound store finds no broken promise, whatever faults its links, workers and servers
// have, and leaves no lock behind.
func TestTortureStores(t *testing.T) {
	t.Parallel()
	for kind := range strings.SplitSeq(*tortureStores, ",") {
		t.Run(kind, func(t *testing.T) {
			w := newWorkspace(t)
			s := w.startTortureStore(kind)
			w.store = s.url
			// With a longer TTL no worker loses its place in a queue because the machine is busy.
			args := append([]string{"torture", "--ttl", "5s", "--for", tortureFor.String(), "--fault-every", "200ms", "--html",
				w.filePath("page.html")}, s.flags...)
			if s.fault != "" {
				args = append(args, "--server-fault", s.fault, "--server-heal", s.heal, "--server-every", "2s", "--server-for", "500ms")
			}
			r := w.newProgram(args...)
			r.cmd.Env = append(r.cmd.Env, append(s.environment, "TMPDIR="+w.dir)...)
			got := r.launch().waitFor(*tortureFor + 4*time.Minute)
			t.Logf("\n%s", got.out)
			if strings.Contains(got.out, "BROKEN") || strings.Contains(got.out, "ended early") || got.code != 0 && got.code != exitUnproven {
				t.Error(got.description)
			}
			if strings.Contains(got.out, "grants       0,") || strings.Contains(got.out, "faults       none") {
				t.Error("there were no grants, or no faults")
			}
			if page, err := os.ReadFile(w.filePath("page.html")); err != nil || !strings.Contains(string(page), "</html>") {
				t.Errorf("the page: %v", err)
			}
			list := w.newProgram("list")
			list.cmd.Env = append(list.cmd.Env, s.environment...)
			if left := list.launch().wait(); strings.Contains(left.out, "holdfast-torture-") {
				t.Errorf("left: %s", left.out)
			}
			w.checkNoTemporaryFiles()
		})
	}
}

// checkNoTemporaryFiles checks that no run of torture has left its folder.
func (w *workspace) checkNoTemporaryFiles() {
	w.Helper()
	if left, err := filepath.Glob(w.filePath("holdfast-torture-*")); err != nil || len(left) > 0 {
		w.Errorf("left: %v, %v", left, err)
	}
}

// TestTortureInterrupted: Ctrl-C ends a torture run with a report of what it did until then. No lock and no worker is
// left.
func TestTortureInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.newProgram("torture", "--for", "1h", "--workers", "3", "--ttl", "5s")
	r.cmd.Env = append(r.cmd.Env, "TMPDIR="+w.dir)
	r.launch()
	w.awaitTrue("a lock of torture", func() bool { return strings.Contains(w.runProgram("list").out, "holdfast-torture-") })
	r.signal(syscall.SIGINT)
	got := r.wait()
	got.check(t, exitUnproven)
	if !strings.Contains(got.out, "ended early: ") || !strings.Contains(got.out, "nothing proven") {
		t.Error(got.description)
	}
	if left := w.runProgram("list").out; left != "" {
		t.Errorf("left: %s", left)
	}
	w.checkNoTemporaryFiles()
}

// TestTortureRefuses: torture refuses what cannot work, before it changes anything.
func TestTortureRefuses(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for want, args := range map[string][]string{
		"--workers must be 2 to 64":  {"--workers", "1"},
		"--for must be 1s or more":   {"--for", "10ms"},
		"known are cut, delay":       {"--faults", "flood"},
		"this store has no cut":      {"--faults", "pause,cut"},
		"known are mutex, fair":      {"--locks", "rwlock"},
		"--ttl must be":              {"--ttl", "10ms"},
		"--rate must be":             {"--rate", "NaN"},
		"--server-heal needs":        {"--server-heal", "true"},
		"--html: no such file":       {"--html", "missing/page.html"},
		"too many arguments":         {"extra"},
		"--hook-timeout must be 1s":  {"--server-fault", "true", "--hook-timeout", "1ms"},
		"--fault-every must be 10ms": {"--fault-every", "1ms"},
	} {
		w.runProgram(append([]string{"torture"}, args...)...).check(t, exitUsage, want)
	}
	_, release := w.startHolder("a")
	w.runProgram("torture", "--for", "1s").check(t, exitUsage, "there are other locks in the store", "--beside-others")
	got := w.runProgram("torture", "--for", "1s", "--beside-others", "--workers", "2", "--locks", "mutex", "--faults", "none")
	if got.check(t, exitUnproven); !strings.Contains(got.out, "not enough: 0 faults") {
		t.Error(got.description)
	}
	release()
	w.store = "redis://127.0.0.1:1"
	w.runProgram("torture").check(t, exitUnavailable, "127.0.0.1:1")
}
