package docs

import (
	"fmt"
	"regexp"
	"strings"
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
