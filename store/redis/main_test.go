package redis

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// machine measures, for as long as the tests run, by how much the machine runs late.
var machine pace.Pace

// expectInTime checks that something that began at start has ended within a limit, apart from the time by which the
// machine itself was late.
func expectInTime(t *testing.T, what string, start time.Time, limit time.Duration) {
	t.Helper()
	expectInTimeOf(t, &machine, what, start, limit)
}

// expectInTimeOf is expectInTime where a server may be late, too: it was watched from before start on.
func expectInTimeOf(t *testing.T, server *pace.Pace, what string, start time.Time, limit time.Duration) {
	t.Helper()
	if took, late := time.Since(start), max(machine.Worst(start), server.Worst(start)); took > limit+10*late {
		t.Errorf("%s: took %v, and may take %v; the machine or the server was late by %v", what, took, limit, late)
	}
}

// watchServer measures, until the test ends, by how much a server is late to answer.
func watchServer(t *testing.T, server *redistest.Server) *pace.Pace {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, ConnWriteTimeout: linkTimeout,
		DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	const every = 10 * time.Millisecond
	var p pace.Pace
	stop := p.WatchTask(every, func(<-chan struct{}) {
		time.Sleep(every)
		_ = client.Do(t.Context(), client.B().Ping().Build())
	})
	t.Cleanup(func() { stop(); client.Close() })
	return &p
}

// TestMain runs more tests at the same time than there are processors, since most tests mainly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "6")
	}
	stop := func() {}
	if flag.Lookup("test.bench").Value.String() == "" { // benchmarks measure what the process uses
		stop = machine.Watch()
	}
	code := m.Run()
	stop()
	os.Exit(code)
}
