// Command start measures what it costs to start and stop the command: CPU, time, memory and the size of its file,
// next to flock(1) and a Go program that does nothing. It builds the command as the Makefile does, and as "go install"
// does with and without its flags. It prints figures as benchmarks do. CPU is that of all processes of a run. Memory is
// that of a run while its command runs (PSS, without that of the command): its own pages, and its share of those that
// all runs share, most of which are the file of the program; anonymous pages are in no file.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

var rounds = flag.Int("rounds", 100, "how often each command is run, in turn with the others")

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "start:", err)
		os.Exit(1)
	}
}

func run() error {
	// So that the listener, whose parent does not wait for it, is reaped here, and its CPU counted.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "holdfast-start-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	command, err := buildCommand(dir)
	if err != nil {
		return err
	}
	empty, err := buildEmptyProgram(dir)
	if err != nil {
		return err
	}
	// The server runs in a process of its own, which a subreaper would reap.
	server, err := redistest.Start()
	if err != nil {
		return err
	}
	defer server.Stop()
	file, redis := "file://"+dir+"/store", "redis://"+server.Addr
	cases := []measuredCommand{
		{name: "flock lock true", argv: []string{"flock", dir + "/lock", "true"}},
		{name: "a Go program that does nothing", argv: []string{empty}},
		{name: "holdfast version", argv: []string{command, "version"}},
		{name: "holdfast run lock true, files", argv: []string{command, "run", "--store", file, "lock", "true"}},
		{name: "holdfast run lock true, Redis", argv: []string{command, "run", "--store", redis, "lock", "true"}},
	}
	if err := measureRuns(cases); err != nil {
		return err
	}
	for _, c := range cases {
		printFigures("Run/"+c.name, *rounds, milliseconds(median(c.cpu)), "cpu-ms",
			milliseconds(slices.Min(c.cpu)), "least-cpu-ms", milliseconds(median(c.took)), "ms",
			milliseconds(slices.Min(c.took)), "least-ms")
	}
	if err := measureInit(command); err != nil {
		return err
	}
	for _, runs := range []int{1, 10} {
		for _, url := range []string{file, redis} {
			if err := measureMemory(command, url, runs); err != nil {
				return err
			}
		}
	}
	return nil
}

// builds are the ways to build the command. The first one is measured.
var builds = []struct {
	name string
	args []string
}{
	{"make build, install with flags", []string{"-tags=grpcnotrace", "-ldflags=-s -w"}},
	{"go install -ldflags '-s -w'", []string{"-tags=", "-ldflags=-s -w"}},
	{"go install", []string{"-tags="}},
}

// buildCommand builds the command in each way, prints its sizes, and returns the path of the first.
func buildCommand(dir string) (path string, err error) {
	for i, b := range builds {
		file := filepath.Join(dir, "holdfast"+strconv.Itoa(i))
		build := exec.Command("go", append(append([]string{"build", "-o", file}, b.args...), "../../cmd/holdfast")...)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", b.name, err, out)
		}
		info, err := os.Stat(file)
		if err != nil {
			return "", err
		}
		printFigures("Size/"+b.name, 1, float64(info.Size())/1e6, "MB")
	}
	return filepath.Join(dir, "holdfast0"), nil
}

// buildEmptyProgram builds a Go program that does nothing, and returns its path: the least that a process of ours
// costs.
func buildEmptyProgram(dir string) (path string, err error) {
	source, path := filepath.Join(dir, "empty.go"), filepath.Join(dir, "empty")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", path, "-ldflags=-s -w", source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("a program that does nothing: %w: %s", err, out)
	}
	return path, nil
}

// measureInit prints what it costs to initialize the packages of the command, most of which are the stores' libraries.
func measureInit(command string) error {
	const times = 20
	var packages, bytes int
	least := math.Inf(1)
	for range times {
		version := exec.Command(command, "version")
		version.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		var trace strings.Builder
		version.Stderr = &trace
		if err := version.Run(); err != nil {
			return err
		}
		total := 0.0
		packages, bytes = 0, 0
		for line := range strings.Lines(trace.String()) {
			// init PACKAGE @AT ms, TOOK ms clock, SIZE bytes, NUMBER allocs
			words := strings.Fields(line)
			if len(words) < 9 || words[0] != "init" {
				continue
			}
			took, err1 := strconv.ParseFloat(words[4], 64)
			size, err2 := strconv.Atoi(words[7])
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			total += took
			packages++
			bytes += size
		}
		least = min(least, total)
	}
	printFigures("Initialization", times, float64(packages), "packages", least, "least-ms", float64(bytes)/1e6, "MB")
	return nil
}

// measuredCommand is a command that is run many times, and what each run took.
type measuredCommand struct {
	name      string
	argv      []string
	cpu, took []time.Duration
}

// measureRuns runs all commands in turn, so that the machine's other work does not decide the comparison. The first
// round does not count.
func measureRuns(cases []measuredCommand) error {
	for i := range *rounds + 1 {
		for j := range cases {
			c := &cases[j]
			cpu, took, err := runOnce(c.argv)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if i > 0 {
				c.cpu, c.took = append(c.cpu, cpu), append(c.took, took)
			}
		}
	}
	return nil
}

// runOnce runs a command, and returns the CPU time of all its processes and the time until it ended.
func runOnce(argv []string) (cpu, took time.Duration, err error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return 0, 0, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, 0, err
	}
	defer null.Close()
	from := time.Now()
	group := &syscall.SysProcAttr{Setpgid: true}
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: os.Environ(),
		Files: []uintptr{null.Fd(), null.Fd(), os.Stderr.Fd()}, Sys: group})
	if err != nil {
		return 0, 0, err
	}
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		// The listener stays in the group, and the guard is waited for by its parent.
		reaped, err := unix.Wait4(-pid, &status, 0, &usage)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return cpu, took, nil
		case err != nil:
			return 0, 0, err
		}
		cpu += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		if reaped == pid {
			took = time.Since(from)
			if status.ExitStatus() != 0 {
				return 0, 0, fmt.Errorf("it ended with status %d", status.ExitStatus())
			}
		}
	}
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

// printFigures prints figures as benchmarks do: a name, how often it was run, and pairs of a figure and its unit.
func printFigures(name string, times int, pairs ...any) {
	fmt.Printf("Benchmark%s\t%d", strings.NewReplacer(", ", "/", " ", "-").Replace(name), times)
	for pair := range slices.Chunk(pairs, 2) {
		fmt.Printf("\t%.3g %s", pair...)
	}
	fmt.Println()
}

// measureMemory prints the memory of the processes of one run, while as many are active.
func measureMemory(command, url string, runs int) error {
	var ends []func() error
	var first int
	for i := range runs {
		run := exec.Command(command, "run", "--store", url, fmt.Sprint("memory-", i), "sh", "-c", "echo held; read end")
		end, err1 := run.StdinPipe()
		out, err2 := run.StdoutPipe()
		if err := errors.Join(err1, err2, run.Start()); err != nil {
			return err
		}
		if _, err := out.Read(make([]byte, 16)); err != nil {
			return err
		}
		if i == 0 {
			first = run.Process.Pid
		}
		ends = append(ends, func() error { return errors.Join(end.Close(), ignoreExit(run.Wait())) })
	}
	pids, err := awaitHelpers(first)
	if err != nil {
		return err
	}
	var total, anonymous float64
	var parts []any
	for _, pid := range pids {
		name, err1 := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		mb, own, err2 := proportionalSize(pid)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		total += mb
		anonymous += own
		parts = append(parts, mb, "MB-of-"+strings.TrimSpace(string(name)))
	}
	scheme, _, _ := strings.Cut(url, ":")
	printFigures(fmt.Sprintf("Memory/one of %d, %s", runs, scheme), 1,
		append([]any{total, "MB", anonymous, "anonymous-MB"}, parts...)...)
	for _, end := range ends {
		err = errors.Join(err, end())
	}
	return err
}

// awaitHelpers waits until a run has its guard and its listener, and returns all three processes.
func awaitHelpers(pid int) ([]int, error) {
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		pids := []int{pid}
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, list := range lists {
			text, err := os.ReadFile(list)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			for number := range strings.FieldsSeq(string(text)) {
				if child, err := strconv.Atoi(number); err == nil {
					pids = append(pids, child)
				}
			}
		}
		if len(pids) == 3 {
			time.Sleep(100 * time.Millisecond) // until they have started
			return pids, nil
		}
	}
	return nil, errors.New("a run has no guard or no listener")
}

// ignoreExit drops the exit code of the shell, which finds the end of its input.
func ignoreExit(err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// proportionalSize is the memory of a process in MB: its own pages, and its share of those that it shares; and how much
// of that is anonymous.
func proportionalSize(pid int) (total, anonymous float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		for name, size := range map[string]*float64{"Pss:": &total, "Pss_Anon:": &anonymous} {
			if number, ok := strings.CutPrefix(line, name); ok {
				kB, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(number), " kB"))
				if err != nil {
					return 0, 0, err
				}
				*size = float64(kB) * 1024 / 1e6
			}
		}
	}
	if total == 0 {
		return 0, 0, errors.New("no Pss in smaps_rollup")
	}
	return total, anonymous, nil
}
