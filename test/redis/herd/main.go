// Command herd measures what it costs when many processes start at once and want one lock: "holdfast run" on files and
// on Redis, with and without --fair, next to flock(1). Each has a job of a millisecond. It prints figures as benchmarks
// do: the seconds for all and for the slowest, and per turn the CPU of all processes and of the server, and the
// scripts.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

var (
	sizes  = flag.String("sizes", "1,50,100,200", "how many processes, each number in turn")
	rounds = flag.Int("rounds", 3, "how often each herd is run, in turn with the others")
	only   = flag.String("only", "", "only the herds whose name contains this")
	binary = flag.String("command", "", "the command to measure; without it, it is built")
	worker = flag.Int("worker", 0, "run the arguments so often at once, and print the cost; for this program itself")
)

func main() {
	flag.Parse()
	err := error(nil)
	if *worker > 0 {
		err = runHerd(*worker, flag.Args())
	} else {
		err = measureHerds()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "herd:", err)
		os.Exit(1)
	}
}

// herd is one way to run a job under a lock.
type herd struct {
	name string
	argv []string
	// server is asked before and after for the CPU that it has used and for how many scripts it has run; nil if there
	// is no server.
	server func() (cpu time.Duration, scripts int, err error)
}

// cost is what one herd has cost.
type cost struct {
	Took    time.Duration
	CPU     time.Duration // of all processes
	Longest time.Duration // the longest that one of the processes took
	scripts int
}

func measureHerds() error {
	dir, err := os.MkdirTemp("", "holdfast-herd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	command := *binary
	if command == "" {
		command = filepath.Join(dir, "holdfast")
		build := exec.Command("go", "build", "-o", command, "-tags=grpcnotrace", "-ldflags=-s -w", "../../cmd/holdfast")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	server, err := redistest.Start()
	if err != nil {
		return err
	}
	defer server.Stop()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, DisableCache: true})
	if err != nil {
		return err
	}
	defer client.Close()
	usage := func() (time.Duration, int, error) { return readUsage(client) }
	job := []string{"herd", "sleep", "0.001"}
	run := func(flags ...string) []string {
		return append(append([]string{command, "run", "--quiet"}, flags...), job...)
	}
	files, redis := "--store=file://"+dir+"/store", "--store=redis://"+server.Addr
	herds := []herd{
		{"flock", append([]string{"flock", dir + "/lock"}, job[1:]...), nil},
		{"files", run(files), nil},
		{"files --fair", run(files, "--fair"), nil},
		{"Redis", run(redis), usage},
		{"Redis --fair", run(redis, "--fair"), usage},
	}
	herds = slices.DeleteFunc(herds, func(h herd) bool { return !strings.Contains(h.name, *only) })
	for size := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(size)
		if err != nil {
			return err
		}
		costs := make([][]cost, len(herds))
		for range *rounds {
			for i, h := range herds {
				c, err := h.measure(n)
				if err != nil {
					return fmt.Errorf("%s: %w", h.name, err)
				}
				costs[i] = append(costs[i], c)
			}
		}
		for i, h := range herds {
			h.print(n, costs[i])
		}
	}
	return nil
}

// print prints the medians of some runs.
func (h herd) print(n int, costs []cost) {
	median := func(of func(cost) float64) float64 {
		sorted := slices.SortedFunc(slices.Values(costs), func(a, b cost) int { return cmp.Compare(of(a), of(b)) })
		return of(sorted[len(sorted)/2])
	}
	fmt.Printf("BenchmarkHerd/%d/%s\t%d\t%.3g s-for-all\t%.3g s-longest\t%.3g cpu-ms/turn", n,
		strings.ReplaceAll(h.name, " ", ""), len(costs), median(func(c cost) float64 { return c.Took.Seconds() }),
		median(func(c cost) float64 { return c.Longest.Seconds() }),
		median(func(c cost) float64 { return c.CPU.Seconds() })*1000/float64(n))
	if h.server != nil {
		fmt.Printf("\t%.3g scripts/turn", median(func(c cost) float64 { return float64(c.scripts) })/float64(n))
	}
	fmt.Println()
}

// measure runs the herd once. It is started by a process of its own, which inherits all that the herd leaves behind.
func (h herd) measure(n int) (c cost, err error) {
	self, err := os.Executable()
	if err != nil {
		return c, err
	}
	var cpu time.Duration
	var scripts int
	if h.server != nil {
		if cpu, scripts, err = h.server(); err != nil {
			return c, err
		}
	}
	run := exec.Command(self, append([]string{"-worker", strconv.Itoa(n)}, h.argv...)...)
	run.Stderr = os.Stderr
	out, err := run.Output()
	if err == nil {
		err = json.Unmarshal(out, &c)
	}
	if err != nil || h.server == nil {
		return c, err
	}
	cpuNow, scriptsNow, err := h.server()
	c.CPU += cpuNow - cpu
	c.scripts = scriptsNow - scripts
	return c, err
}

// runHerd starts a command n times at once, waits for all processes that come of it, and prints what they cost.
func runHerd(n int, argv []string) error {
	// So that all processes are waited for here, also those whose parent does not wait for them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var c cost
	began := time.Now()
	started := map[int]time.Time{}
	for range n {
		from := time.Now()
		pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: os.Environ(),
			Files: []uintptr{null.Fd(), null.Fd(), os.Stderr.Fd()}})
		if err != nil {
			return err
		}
		started[pid] = from
	}
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, 0, &usage)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return json.NewEncoder(os.Stdout).Encode(c)
		case err != nil:
			return err
		}
		c.CPU += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		if from, ok := started[pid]; ok {
			if status.ExitStatus() != 0 {
				return fmt.Errorf("a process ended with status %d", status.ExitStatus())
			}
			c.Took, c.Longest = time.Since(began), max(c.Longest, time.Since(from))
		}
	}
}

// readUsage asks a server for the CPU that it has used, and for the number of scripts that it has run.
func readUsage(client rueidis.Client) (cpu time.Duration, scripts int, err error) {
	for _, section := range []string{"cpu", "commandstats"} {
		text, err := client.Do(context.Background(), client.B().Info().Section(section).Build()).ToString()
		if err != nil {
			return 0, 0, err
		}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch key {
			case "used_cpu_user", "used_cpu_sys":
				seconds, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return 0, 0, err
				}
				cpu += time.Duration(seconds * float64(time.Second))
			case "cmdstat_evalsha", "cmdstat_eval":
				calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
				n, err := strconv.Atoi(calls)
				if err != nil {
					return 0, 0, err
				}
				scripts += n
			}
		}
	}
	return cpu, scripts, nil
}
