package zookeeper

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

var interop = flag.Int("interop", 60, "how many rounds each client makes on one lock with another kind of client")

// classes is where the Java programs of the tests are compiled to.
var classes = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "holdfast-java")
	if err != nil {
		return "", err
	}
	programs, err := filepath.Glob("testdata/*.java")
	if err != nil {
		return "", err
	}
	args := append([]string{"-cp", zktest.ClassPath(curatorJars...), "-d", dir}, programs...)
	if out, err := exec.Command("javac", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("javac: %w: %s", err, out)
	}
	return dir, nil
})

var curatorJars = []string{"curator-recipes", "curator-framework", "curator-client", "zookeeper", "guava", "slf4j-api", "slf4j-nop"}

// javaProgram is the command that runs a program of testdata.
func javaProgram(t *testing.T, name string) []string {
	t.Helper()
	dir, err := classes()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", dir + ":" + zktest.ClassPath(curatorJars...), name}
}

func curator(t *testing.T) []string { return javaProgram(t, "Peer") }

// kazoo is the command that uses kazoo's recipes, by Debian's own Python.
func kazoo(*testing.T) []string {
	return []string{"/usr/bin/python3", filepath.Join("testdata", "peer.py")}
}

// TestInterop: Curator's and kazoo's locks, in processes of their own, exclude us and are excluded by us, and both sides make
// progress. Each writer adds to a number in a file, in two steps, and not one addition is lost; no reader ever sees
// it change.
func TestInterop(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	for _, k := range []struct {
		name, layout, kind string
		peer               func(*testing.T) []string
	}{
		{"curator-mutex", LayoutCurator, "mutex", curator},
		{"curator-readwrite", LayoutCurator, "rw", curator},
		{"kazoo-lock", LayoutKazoo, "mutex", kazoo},
		{"kazoo-readwrite", LayoutKazoo, "rw", kazoo},
		{"both-with-curator", LayoutBoth, "mutex", curator},
		{"both-with-kazoo", LayoutBoth, "mutex", kazoo},
		{"both-with-curator-readwrite", LayoutBoth, "rw", curator},
		{"both-with-kazoo-readwrite", LayoutBoth, "rw", kazoo},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "number")
			if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
				t.Fatal(err)
			}
			lock := t.Name()
			args := append(k.peer(t), strings.Join(c.Endpoints(), ","), "/"+lock, k.kind, strconv.Itoa(*interop), file)
			peer := exec.CommandContext(t.Context(), args[0], args[1:]...)
			var out bytes.Buffer
			peer.Stdout, peer.Stderr = &out, &out
			if err := peer.Start(); err != nil {
				t.Fatal(err)
			}
			theirs := make(chan error, 1)
			go func() { theirs <- peer.Wait() }()
			s, err := New(Options{Servers: c.Endpoints(), Layout: k.layout})
			if err != nil {
				t.Fatal(err)
			}
			client := newClient(t, s, 20*time.Second)
			waited, added, rounds := 0, 0, 0
			for over := false; !over || rounds < *interop; rounds++ {
				read := k.kind == "rw" && rand.N(2) == 0
				l, err := lockOurs(t, client, k.kind, lock, read)
				if err != nil {
					t.Fatal(err)
				}
				if read {
					err = lookAt(file)
				} else {
					err = addOne(file)
					added++
				}
				if err != nil {
					t.Fatalf("two held at a time: %v", err)
				}
				if now, err := s.Inspect(t.Context(), lock); err != nil || len(now.Holders) == 0 {
					t.Errorf("held by us, and shown as %+v, %v", now, err)
				} else {
					for _, w := range now.Waiters {
						if w.Foreign {
							waited++
							break
						}
					}
				}
				fails(t, l.Unlock())
				select {
				case err := <-theirs:
					if err != nil {
						t.Fatalf("the peer: %v\n%s", err, out.Bytes())
					}
					over = true
				default:
				}
			}
			n, err := number(file)
			fails(t, err)
			t.Logf("%d rounds of ours and %d of theirs; they were seen to wait for us %d times; %d additions of ours make %d", rounds, *interop, waited, added, n)
			_, said, _ := strings.Cut(out.String(), "added ")
			if more, err := strconv.Atoi(strings.TrimSpace(said)); err != nil || more+added != n {
				t.Errorf("two held at a time: the number is %d after %d additions of ours, and the peer says: %s", n, added, out.Bytes())
			}
			if waited == 0 {
				t.Error("the two never contended")
			}
		})
	}
}

func lockOurs(t *testing.T, client *holdfast.Client, kind, lock string, read bool) (*holdfast.Lease, error) {
	switch {
	case kind == "mutex":
		return client.Mutex(lock, nil).Lock(t.Context())
	case read:
		return client.RWMutex(lock, nil).RLock(t.Context())
	}
	return client.RWMutex(lock, nil).Lock(t.Context())
}

func number(file string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// addOne adds to the number in a file, in two steps.
func addOne(file string) error {
	n, err := number(file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
}

// lookAt looks that nobody adds.
func lookAt(file string) error {
	before, err := number(file)
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	if after, err := number(file); err != nil || after != before {
		return errors.Join(err, fmt.Errorf("%d became %d under a reader", before, after))
	}
	return nil
}
