package clients

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// BenchmarkClients: what a lock costs that is acquired and released, through the packages of other languages, next to
// the library in Go and to the clients that others use in these languages, on one Redis: by one caller, and by 64 in one
// process, each with a lock of its own. The processor time is that of the program, of its engine, and of Redis. Others
// are left out if scripts/bench has not installed them. In addition, what an engine costs by itself.
func BenchmarkClients(b *testing.B) {
	k := mustBuild(b)
	redis, err := redistest.Start()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(redis.Stop)
	agents := maps.Clone(k.agents)
	agents["go"] = []string{os.Args[0], holderArgument}
	// As Java runs programs, and not as it starts fastest.
	agents["java"] = slices.DeleteFunc(slices.Clone(agents["java"]), func(word string) bool { return strings.HasPrefix(word, "-X") })
	maps.Copy(agents, otherClients(k.root))
	for _, name := range []string{"go", "python", "redis-py", "asyncio", "redis-py-asyncio", "node", "redlock", "java", "redisson"} {
		argv := agents[name]
		if argv == nil {
			b.Logf("%s is not installed", name)
			continue
		}
		url := "redis://" + redis.Addr + "?prefix=" + name + "-"
		if strings.HasPrefix(name, "red") {
			url = "redis://" + redis.Addr
		}
		b.Run(name, func(b *testing.B) {
			r := newRunner(b, k, name, url)
			r.argv = argv
			r.number = 1
			for _, callers := range []int{1, 64} {
				b.Run(strconv.Itoa(callers), func(b *testing.B) { r.benchCycles(b, name, callers, redis.PID()) })
			}
		})
	}
	b.Run("engine", func(b *testing.B) { benchEngine(b, k, "redis://"+redis.Addr) })
}

// otherClients are the programs of others, which answer as agents do, if they are installed.
func otherClients(root string) map[string][]string {
	at := filepath.Join(root, "bin/lockers")
	found := map[string][]string{}
	if in := filepath.Join(at, "python"); exists(in) {
		found["redis-py"] = []string{"env", "PYTHONPATH=" + in, "PYTHONDONTWRITEBYTECODE=1", "python3", "testdata/redispy.py"}
		found["redis-py-asyncio"] = append(slices.Clone(found["redis-py"]), "asyncio")
	}
	if in := filepath.Join(at, "node"); exists(in) {
		found["redlock"] = []string{"env", "NODE_PATH=" + filepath.Join(in, "node_modules"), "node", "testdata/redlock.cjs"}
	}
	if in := filepath.Join(at, "java"); exists(in) {
		found["redisson"] = []string{"java", "-cp", filepath.Join(in, "*"), "testdata/Redisson.java"}
	}
	return found
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// benchCycles has the agent of a name acquire and release locks.
func (r *runner) benchCycles(b *testing.B, name string, callers, redis int) {
	a := r.agent(name)
	cycles := func(n int) {
		if got := <-a.send(r, "cycles", map[string]any{"callers": callers, "count": n}); got["error"] != nil {
			b.Fatalf("%v", got)
		}
	}
	cycles(callers) // which connects
	engine := 0
	if name != "go" && !strings.HasPrefix(name, "red") {
		engine = r.engineOf(name)
	}
	before := processorTime(b, a.cmd.Process.Pid, engine, redis)
	b.ResetTimer()
	cycles(b.N)
	b.StopTimer()
	after := processorTime(b, a.cmd.Process.Pid, engine, redis)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
	for i, of := range []string{"program", "engine", "redis"} {
		if of != "engine" || engine != 0 {
			b.ReportMetric(float64((after[i]-before[i]).Microseconds())/float64(b.N), of+"-cpu-us/op")
		}
	}
	if engine != 0 {
		b.ReportMetric(anonymousMB(b, engine), "engine-anonymous-MB")
	}
}

// processorTime is how much each process has used, in steps of 10 ms; 0 is no process.
func processorTime(b *testing.B, pids ...int) (used []time.Duration) {
	b.Helper()
	for _, pid := range pids {
		if pid == 0 {
			used = append(used, 0)
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), ") ") // behind the name, which may have spaces
		fields := strings.Fields(rest)
		user, err1 := strconv.Atoi(fields[11])
		system, err2 := strconv.Atoi(fields[12])
		if err1 != nil || err2 != nil {
			b.Fatalf("%s", text)
		}
		used = append(used, time.Duration(user+system)*10*time.Millisecond)
	}
	return used
}

// anonymousMB is the memory of a process that is in no file.
func anonymousMB(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if size, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kB, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(size), " kB"))
			if err != nil {
				b.Fatal(err)
			}
			return float64(kB) * 1024 / 1e6
		}
	}
	b.Fatal("no RssAnon")
	return 0
}

// benchEngine measures how long an engine takes to start, and what it costs while nobody calls it.
func benchEngine(b *testing.B, k *kit, url string) {
	start := func(b *testing.B) (pid int, stop func()) {
		b.Helper()
		engine := exec.Command(k.command, "serve", "--json", "--exit-with-stdin")
		engine.Env = append(os.Environ(), "HOLDFAST_STORE="+url)
		in, err1 := engine.StdinPipe()
		out, err2 := engine.StdoutPipe()
		if err1 != nil || err2 != nil {
			b.Fatal(err1, err2)
		}
		if err := engine.Start(); err != nil {
			b.Fatal(err)
		}
		_, err := io.WriteString(in, "the token of this benchmark\n")
		line, readErr := bufio.NewReader(out).ReadBytes('\n')
		if err != nil || readErr != nil || !json.Valid(line) {
			b.Fatalf("%v, %v: %q", err, readErr, line)
		}
		return engine.Process.Pid, func() {
			_ = in.Close()
			_ = engine.Wait()
		}
	}
	b.Run("start", func(b *testing.B) {
		for range b.N {
			_, stop := start(b)
			b.StopTimer()
			stop()
			b.StartTimer()
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/1e3/float64(b.N), "ms")
	})
	b.Run("idle", func(b *testing.B) { // an operation is a second in which nobody calls
		pid, stop := start(b)
		defer stop()
		before := processorTime(b, pid)
		for range b.N {
			time.Sleep(time.Second)
		}
		used := processorTime(b, pid)[0] - before[0]
		b.ReportMetric(float64(used.Microseconds())/1e3/float64(b.N), "cpu-ms/s")
		b.ReportMetric(anonymousMB(b, pid), "anonymous-MB")
	})
}
