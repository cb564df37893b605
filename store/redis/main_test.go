package redis

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// machine is watched for as long as the tests run.
var machine pace.Pace

// expectInTime checks that what began at start has ended within a limit, beside what this machine was late by itself.
func expectInTime(t *testing.T, what string, start time.Time, limit time.Duration) {
	t.Helper()
	if took, late := time.Since(start), machine.Worst(start); took > limit+10*late {
		t.Errorf("%s: took %v, and may take %v; the machine was late by %v", what, took, limit, late)
	}
}

// TestMain runs more tests at a time than there are processors: most of them wait.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "6")
	}
	stop := machine.Watch()
	code := m.Run()
	stop()
	os.Exit(code)
}
