package docs

import (
	"fmt"
	"testing"
	"time"
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
