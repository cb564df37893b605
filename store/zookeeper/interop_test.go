package zookeeper

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	gozk "github.com/go-zookeeper/zk"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// compileClasses compiles the Java programs of the tests, and returns their directory.
func compileClasses(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(rig.Shared(t).Dir, "classes")
	compiled.Do(func() {
		programs, err := filepath.Glob("testdata/*.java")
		if err != nil {
			t.Fatal(err)
		}
		args := append([]string{"-cp", zktest.ClassPath(curatorJars...), "-d", dir}, programs...)
		if out, err := exec.Command("javac", args...).CombinedOutput(); err != nil {
			t.Fatalf("javac: %v: %s", err, out)
		}
	})
	return dir
}

var compiled sync.Once

var curatorJars = []string{"curator-recipes", "curator-framework", "curator-client", "zookeeper", "guava", "slf4j-api",
	"slf4j-nop"}

// javaProgram returns the command that runs a program of testdata.
func javaProgram(t testing.TB, name string) []string {
	t.Helper()
	return []string{"java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", compileClasses(t) + ":" +
		zktest.ClassPath(curatorJars...), name}
}

func curatorCommand(t *testing.T) []string { return javaProgram(t, "Peer") }

// kazooCommand returns the command that uses kazoo's recipes, by Debian's own Python.
func kazooCommand(*testing.T) []string {
	return []string{"/usr/bin/python3", filepath.Join("testdata", "peer.py")}
}

// TestInterop: Curator's and kazoo's locks, in processes of their own, exclude us and are excluded by us, and both
// sides make progress.
func TestInterop(t *testing.T) {
	t.Parallel()
	servers := rig.Shared(t).Endpoints()
	cli := newAdmin(t, rig.Shared(t))
	for _, k := range []struct {
		name   string
		layout Layout
		kind   driver.Kind
		peer   func(*testing.T) []string
	}{
		{"curator-readwrite-with-mutex", LayoutCuratorReadWrite, driver.KindMutex, curatorCommand},
		{"curator-mutex", LayoutCurator, driver.KindMutex, curatorCommand},
		{"curator-readwrite", LayoutCurator, driver.KindRW, curatorCommand},
		{"kazoo-lock", LayoutKazoo, driver.KindMutex, kazooCommand},
		{"kazoo-readwrite", LayoutKazoo, driver.KindRW, kazooCommand},
		{"both-with-curator", LayoutBoth, driver.KindMutex, curatorCommand},
		{"both-with-kazoo", LayoutBoth, driver.KindMutex, kazooCommand},
		{"both-with-curator-readwrite", LayoutBoth, driver.KindRW, curatorCommand},
		{"both-with-kazoo-readwrite", LayoutBoth, driver.KindRW, kazooCommand},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s, err := openAs[*store](servers, Options{Layout: k.layout})
			if err != nil {
				t.Fatal(err)
			}
			sessiontest.Interop(t, s, k.kind, func(lock, file string) func() (int, error) {
				theirs := k.kind
				if k.layout == LayoutCuratorReadWrite {
					theirs = driver.KindRW
				}
				args := append(k.peer(t), strings.Join(servers, ","), "/"+lock, string(theirs),
					strconv.Itoa(*sessiontest.Rounds), file)
				// A claim was broken shortly before: nobody minds the note of that.
				note := s.nodeStore.notePathOf(lock, joinEnding(formatStem(sessionName(1), newPayload(0)), endLock)+
					"0000000000")
				_, err := cli.Create(note, nil, gozk.FlagEphemeral, gozk.WorldACL(gozk.PermAll))
				mustSucceed(t, err)
				return func() (added int, err error) {
					out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
					if err != nil {
						return 0, fmt.Errorf("%w: %s", err, out)
					}
					_, said, _ := strings.Cut(string(out), "added ")
					return strconv.Atoi(strings.TrimSpace(said))
				}
			})
		})
	}
}
