package docs

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// TestMovingFromFlock: a job that takes Holdfast's lock and then flock's excludes jobs that take either of them, and so
// it does while one kind of job replaces the other.
func TestMovingFromFlock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	both := start(t, m, "holdfast run job -- flock file sh -c 'echo begun; read end'")
	for line, want := range map[string]int{
		"flock -n file true":                               1,
		"holdfast run -n job -- true":                      75,
		"holdfast run -n job -- flock -n file true":        75,
		"holdfast run -n other -- flock -n -E 9 file true": 9,
	} {
		if code, out := m.run(t, "sh", "-c", line); code != want {
			t.Errorf("%s: exit code %d: %s", line, code, out)
		}
	}
	_ = both.stdin.Close()
	endWith(t, both, 0)
	if code, out := m.run(t, "sh", "-c", "flock -n file holdfast run -n job -- true"); code != 0 {
		t.Errorf("after the job: exit code %d: %s", code, out)
	}
}

// TestCancelledPipeline: the lock that a canceled pipeline has left is free once an operator breaks it by force.
func TestCancelledPipeline(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, step := range []struct {
		line string
		want int
	}{
		{"acquire --ttl 1h deploy", 0},
		{"break deploy", 0},
		{"run -n deploy true", 75},
		{"break --force deploy", 0},
		{"run -n deploy true", 0},
	} {
		if code, out := m.run(t, "sh", "-c", "holdfast "+step.line); code != step.want {
			t.Errorf("%s: exit code %d: %s", step.line, code, out)
		}
	}
}

var (
	acquireLine = regexp.MustCompile(`(?s)\n[^\n]*\$\(holdfast acquire .*`)
	echoedWork  = regexp.MustCompile(`echo "([^"$]+)"`)
	waitFlag    = regexp.MustCompile(`--wait \S+ `)
)

// TestNoWorkWithoutLock: a shown script that acquires a lock does not work if somebody else has the lock, and a shown
// step of a pipeline fails.
func TestNoWorkWithoutLock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if code, out := m.run(t, "sh", "-c", "holdfast acquire --ttl 1h deploy && holdfast acquire --ttl 1h deploy-production"); code != 0 {
		t.Fatal(out)
	}
	withoutLock := func(script string) (code int, out string) {
		script = waitFlag.ReplaceAllString(script, "")
		return m.run(t, "bash", "-c", "GITHUB_OUTPUT=handles\n"+strings.ReplaceAll(script, "holdfast acquire", "holdfast acquire -n"))
	}
	scripts, steps := 0, 0
	for _, file := range documents(t) {
		for _, b := range documentBlocks(t, file) {
			script := acquireLine.FindString("\n" + b.text)
			switch {
			case script == "":
			case b.language == "yaml":
				var pipeline struct {
					Jobs map[string]struct{ Steps []struct{ Run string } }
				}
				if err := yaml.Unmarshal([]byte(b.text), &pipeline); err != nil {
					t.Fatal(err)
				}
				for _, job := range pipeline.Jobs {
					for _, step := range job.Steps {
						if !strings.Contains(step.Run, "$(holdfast acquire") {
							continue
						}
						steps++
						if code, out := withoutLock("set -e\n" + step.Run); code != 75 {
							t.Errorf("%s: exit code %d: %s: %s", documentName(t, file), code, step.Run, out)
						}
					}
				}
			default:
				scripts++
				work := echoedWork.FindStringSubmatch(script)
				if work == nil {
					t.Fatalf("%s: the script shows no work:\n%s", documentName(t, file), script)
				}
				if _, out := withoutLock(script); strings.Contains("\n"+out, "\n"+work[1]+"\n") {
					t.Errorf("%s: it works without the lock:\n%s\n%s", documentName(t, file), script, out)
				}
			}
		}
	}
	if scripts < 3 || steps < 1 {
		t.Errorf("found only %d scripts and %d steps", scripts, steps)
	}
}

var (
	exitTrap   = regexp.MustCompile(`(?m)^ *trap .* EXIT$`)
	signalTrap = regexp.MustCompile(`(?m)^ *trap 'exit [0-9]+' HUP INT TERM$`)
)

// TestSignaledScript: a shown script that releases its lock in a trap does so however a signal ends it, in each of the
// usual shells, also if the signal comes before the shell knows the handle.
func TestSignaledScript(t *testing.T) {
	t.Parallel()
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} { // so that a script does not inherit that they are ignored
		signal.Notify(make(chan os.Signal, 1), s)
	}
	scripts := map[string]string{}
	for _, file := range documents(t) {
		for _, b := range documentBlocks(t, file) {
			if !exitTrap.MatchString(b.text) {
				continue
			}
			if !signalTrap.MatchString(b.text) {
				t.Errorf("%s: the script of line %d has a trap for its exit, and none for signals", documentName(t, file), b.line)
			}
			if strings.Contains(b.text, "holdfast acquire") {
				scripts[documentName(t, file)] = b.text
			}
		}
	}
	m := newMachine(t)
	_, help := m.run(t, "sh", "-c", "holdfast acquire --help")
	_, script, _ := strings.Cut(help, "\n    h=\n")
	script, _, _ = strings.Cut(script, "\n\n")
	scripts["acquire --help"] = "h=\n" + script
	if len(scripts) < 2 || !exitTrap.MatchString(script) {
		t.Fatalf("found only %q", scripts)
	}
	for where, script := range scripts {
		for _, shell := range []string{"dash", "bash"} {
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
				t.Run(fmt.Sprint(where, " ", shell, " ", sig), func(t *testing.T) {
					t.Parallel()
					for _, early := range []bool{false, true} {
						checkSignaledScript(t, script, shell, sig, early)
					}
				})
			}
		}
	}
}

// checkSignaledScript runs a script with the lock deploy, and sends it a signal: to all its processes, in the middle
// of its work, or to the shell alone, after acquire has acquired the lock and before the shell has read the handle.
func checkSignaledScript(t *testing.T, script, shell string, sig syscall.Signal, early bool) {
	t.Helper()
	m := newMachine(t)
	program := holdfastProgram(t)
	write := func(name, text string) {
		syscall.ForkLock.RLock() // see newMachine
		defer syscall.ForkLock.RUnlock()
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// The work is one process, which shows that it has begun once it is no shell any more: a shell that is about to
	// start another program may lose a signal.
	work := "echo working >note\nexec tail -f note >&3\n"
	acquired := ""
	if early {
		acquired = fmt.Sprintf("kill -%d $SCRIPT\n", int(sig))
	}
	write("step-one", work)
	write("holdfast", fmt.Sprintf(`case $1 in
renew) %s;;
acquire)
h=$(%s "$@") || exit
%secho "$h"
;;
*) exec %[2]s "$@"
esac
`, work, program, acquired))
	read, written, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd := exec.Command(shell, "-c", "SCRIPT=$$\nexport SCRIPT\n"+script)
	cmd.Dir, cmd.Env, cmd.ExtraFiles = m.dir, append(m.environ(t), "PATH="+m.dir+":/usr/bin:/bin"), []*os.File{written}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	written.Close()
	if err != nil {
		t.Fatal(err)
	}
	// It ends in any case, so that a script that works on after the signal shows as a failure.
	defer time.AfterFunc(2*time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }).Stop()
	worked, _ := read.Read(make([]byte, 1))
	if !early {
		if err := syscall.Kill(-cmd.Process.Pid, sig); err != nil {
			t.Error(err)
		}
	} else if worked > 0 {
		t.Error("it works on after the signal")
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	_ = cmd.Wait()
	if code, out := m.run(t, program, "run", "-n", "deploy", "--", "true"); code != 0 {
		t.Errorf("%v, early %v: the script left its lock (%v): %s", sig, early, cmd.ProcessState, out)
	}
}

// TestNextPodWaits: the pod that a CronJob starts while the run of a dead pod still counts waits for the end of that
// run, and then does the job. So it does not use up what its backoffLimit allows.
func TestNextPodWaits(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	checked := 0
	for _, file := range documents(t) {
		for _, b := range documentBlocks(t, file) {
			if b.language != "yaml" || !strings.Contains(b.text, "backoffLimit") {
				continue
			}
			for _, line := range yamlCommands(t, file, b) {
				call, _, hasCommand := strings.Cut(withSlot(line, time.Minute), " '--' ")
				if !hasCommand || !strings.HasPrefix(call, "'holdfast' 'once' ") {
					continue
				}
				checked++
				first := start(t, m, call+" sh -c 'echo begun; read end; exit 1'")
				next := start(t, m, strings.Replace(call, "'once'", "once -v", 1)+" sh -c 'echo ran' 2>&1")
				_ = first.stdin.Close()
				if code := endWith(t, first, 0); code != 1 {
					t.Errorf("the first pod: exit code %d", code)
				}
				if code := endWith(t, next, 0); code != 0 {
					t.Errorf("%s: the next pod exits %d", call, code)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no manifest was found")
	}
}

// TestLateNight: a job that could not begin on time, because the store was down, is begun by the second line of the
// crontab if that comes within --start-within, and is begun once.
func TestLateNight(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	due := time.Now().UTC().Add(-30 * time.Minute)
	once := fmt.Sprintf("holdfast once --schedule '%d %d * * *' --tz UTC", due.Minute(), due.Hour())
	for _, step := range []struct {
		line, ran string
	}{
		{once + " nightly echo ran 2>/dev/null", ""},
		{once + " --start-within 1h nightly echo ran 2>/dev/null", "ran\n"},
		{once + " --start-within 1h nightly echo ran 2>/dev/null", ""},
	} {
		if code, out := m.run(t, "sh", "-c", step.line); code != 0 || out != step.ran {
			t.Errorf("%s: exit code %d, and it printed %q instead of %q", step.line, code, out, step.ran)
		}
	}
}
