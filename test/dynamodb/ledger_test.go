package dynamodb

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast"
)

// python is Debian's, which has the packages that scripts/setup installs.
const python = "/usr/bin/python3"

const (
	sharedTable = "boto3-events"
	deliveries  = 3 // of each event to each worker
)

// sharedEvent counts the runs of an event, by plain workers and by ours.
type sharedEvent struct {
	key              string
	running          atomic.Int32
	byPython, byOurs atomic.Int64
	successes        atomic.Int32
}

func (e *sharedEvent) begin(t testing.TB, by *atomic.Int64) {
	by.Add(1)
	if e.running.Add(1) != 1 {
		t.Errorf("%s runs twice at the same time", e.key)
	}
}

func (e *sharedEvent) end(t testing.TB, succeeded bool) {
	if succeeded && e.successes.Add(1) != 1 {
		t.Errorf("%s succeeds twice", e.key)
	}
	e.running.Add(-1)
}

// TestBoto3: plain workers in Python and workers of ours share a table. Each event is delivered to all of them several
// times: in turn first to those in Python, first to ours, and to all at once. Nobody runs an event that somebody else
// runs or has run. It needs Debian's python3-boto3.
func TestBoto3(t *testing.T) {
	t.Parallel()
	if err := exec.Command(python, "-c", "import boto3").Run(); err != nil {
		t.Skip("needs python3-boto3: apt-get install python3-boto3")
	}
	const workers = 3
	events := max(30, *rounds)
	endpoint := server(t).Endpoint
	var ours []*holdfast.Ledger
	var plain []*plainWorker
	for range workers {
		ours = append(ours, open(t, "dynamodb://"+sharedTable+"?region=eu-central-1&create=true&layout=ledger&endpoint="+
			url.QueryEscape(endpoint)).Ledger(sharedTable, nil))
		plain = append(plain, startPlainWorker(t, endpoint))
	}
	var byPython, byOurs, byBoth int64
	for n := range events {
		e := &sharedEvent{key: fmt.Sprint("event", n)}
		pythonBegins, oursBegin := make(chan struct{}), make(chan struct{})
		startPython, startOurs := sync.OnceFunc(func() { close(pythonBegins) }), sync.OnceFunc(func() { close(oursBegin) })
		var all sync.WaitGroup
		for i := range workers {
			all.Go(func() {
				<-pythonBegins
				plain[i].deliver(t, e, startOurs)
			})
			all.Go(func() {
				<-oursBegin
				for range deliveries {
					runEvent(t, e, ours[i], startPython)
				}
			})
		}
		if n%3 != 1 {
			startPython()
		}
		if n%3 != 0 {
			startOurs()
		}
		all.Wait()
		for e.successes.Load() == 0 && !t.Failed() { // all of its runs have failed
			runEvent(t, e, ours[0], func() {})
		}
		history, err := ours[0].History(t.Context(), e.key)
		if runs := e.byPython.Load() + e.byOurs.Load(); err != nil || int64(len(history)) != runs ||
			history[runs-1].State != holdfast.RunSucceeded {
			t.Errorf("%s had %d runs, and its history is %+v (%v)", e.key, runs, history, err)
		}
		if n%3 == 0 && e.byPython.Load() == 0 || n%3 == 1 && e.byOurs.Load() == 0 {
			t.Errorf("%s was run %d times in Python and %d times by ours", e.key, e.byPython.Load(), e.byOurs.Load())
		}
		if t.Failed() {
			return
		}
		if e.byPython.Load() > 0 && e.byOurs.Load() > 0 {
			byBoth++
		}
		byPython, byOurs = byPython+e.byPython.Load(), byOurs+e.byOurs.Load()
	}
	t.Logf("%d events, each delivered %d times: %d runs in Python, %d of ours, both of %d events; none at the same time "+
		"as another of its event", events, 2*workers*deliveries, byPython, byOurs, byBoth)
}

// runEvent delivers an event to a worker of ours. Its run fails every second time. begun is called when it is known who
// runs the event.
func runEvent(t testing.TB, e *sharedEvent, ledger *holdfast.Ledger, begun func()) {
	defer begun()
	run, err := ledger.Begin(t.Context(), e.key, nil)
	switch {
	case errors.Is(err, holdfast.ErrInProgress), errors.Is(err, holdfast.ErrSucceeded):
		return
	case err != nil:
		t.Error(err)
		return
	}
	e.begin(t, &e.byOurs)
	begun()
	succeeds := rand.IntN(2) == 0
	e.end(t, succeeds)
	if succeeds {
		err = run.Succeed(t.Context(), nil)
	} else {
		err = run.Fail(t.Context(), errors.New("no"))
	}
	if err != nil {
		t.Error(err)
	}
}

// plainWorker is a process that runs testdata/plainworker.py.
type plainWorker struct {
	in  io.WriteCloser
	out *bufio.Scanner
}

func startPlainWorker(t testing.TB, endpoint string) *plainWorker {
	t.Helper()
	cmd := exec.Command(python, "testdata/plainworker.py", endpoint, sharedTable, strconv.Itoa(deliveries))
	cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if t.Failed() {
			_ = cmd.Process.Kill() // it may wait for an answer
		}
		if err := cmd.Wait(); err != nil && !t.Failed() {
			t.Error("the worker in Python:", err)
		}
	})
	w := &plainWorker{in, bufio.NewScanner(out)}
	if word := w.read(); word != "ready" {
		t.Fatalf("the worker in Python says %q", word)
	}
	w.write(t, "ok")
	return w
}

func (w *plainWorker) read() string {
	w.out.Scan()
	return w.out.Text()
}

func (w *plainWorker) write(t testing.TB, line string) {
	if _, err := io.WriteString(w.in, line+"\n"); err != nil {
		t.Error("the worker in Python:", err)
	}
}

// deliver delivers an event to the worker. begun is called when it is known who runs the event.
func (w *plainWorker) deliver(t testing.TB, e *sharedEvent, begun func()) {
	defer begun()
	w.write(t, e.key)
	for {
		switch word := w.read(); word {
		case "begin":
			e.begin(t, &e.byPython)
			begun()
		case "succeeded", "failed":
			e.end(t, word == "succeeded")
		case "done":
			w.write(t, "ok")
			return
		default:
			t.Errorf("the worker in Python says %q", word)
			return
		}
		w.write(t, "ok")
	}
}
