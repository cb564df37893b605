package redis

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// machine measures, for as long as the tests run, by how much the machine runs late.
var machine pace.Pace

// expectInTime checks that something that began at start has ended within a limit, apart from the time by which the
// machine itself was late.
func expectInTime(t *testing.T, what string, start time.Time, limit time.Duration) {
	t.Helper()
	if took, late := time.Since(start), machine.Worst(start); took > limit+10*late {
		t.Errorf("%s: took %v, and may take %v; the machine was late by %v", what, took, limit, late)
	}
}

// TestMain runs more tests at the same time than there are processors, since most tests mainly wait.
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
