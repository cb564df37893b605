package holdfastotel

import (
	"bufio"
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/store/file"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("HOLDFAST_TEST_HOLDER"); dir != "" {
		if err := runHolder(dir); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runHolder is a process of its own: it holds a lock until its input ends, and exports its spans by OTLP.
func runHolder(dir string) error {
	exporter, err := otlptracehttp.New(context.Background()) // its server is in the environment
	if err != nil {
		return err
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter))
	telemetry, err := New(&Options{TracerProvider: provider})
	if err != nil {
		return err
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(),
		propagation.MapCarrier{"traceparent": os.Getenv("TRACEPARENT")})
	client, err := holdfast.Open(ctx, "file://"+dir, &holdfast.Options{OnEvent: telemetry.OnEvent})
	if err != nil {
		return err
	}
	lease, err := client.Mutex("order", &holdfast.LockOptions{Fair: true}).Lock(ctx)
	if err != nil {
		return err
	}
	os.Stdout.WriteString("held\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := lease.Release(); err != nil {
		return err
	}
	if err := client.Close(); err != nil {
		return err
	}
	return provider.Shutdown(context.Background())
}

// receiver is an OTLP receiver.
type receiver struct {
	mu    sync.Mutex
	spans []*tracepb.Span
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	data, err := io.ReadAll(req.Body)
	var export collector.ExportTraceServiceRequest
	if err != nil || proto.Unmarshal(data, &export) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range export.ResourceSpans {
		for _, scoped := range resource.ScopeSpans {
			r.spans = append(r.spans, scoped.Spans...)
		}
	}
}

type holder struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout *bufio.Reader
}

func startHolder(t *testing.T, env ...string) *holder {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
	return &holder{cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout)}
}

func (h *holder) waitUntilHeld(t *testing.T) {
	t.Helper()
	if line, err := h.stdout.ReadString('\n'); line != "held\n" {
		t.Fatalf("the holder prints %q, %v", line, err)
	}
}

// end lets the holder release the lock and exit.
func (h *holder) end(t *testing.T) {
	t.Helper()
	_ = h.stdin.Close()
	_, _ = io.Copy(io.Discard, h.stdout)
	if err := h.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestHandoverTrace: a lock passes from one process to another. An OTLP receiver has the spans of both in one trace:
// the second process waited while the first one held the lock, and its token is larger.
func TestHandoverTrace(t *testing.T) {
	var received receiver
	server := httptest.NewServer(&received)
	defer server.Close()
	dir := t.TempDir()
	const traceID = "0123456789abcdef0123456789abcdef"
	env := []string{"HOLDFAST_TEST_HOLDER=" + dir, "OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL,
		"TRACEPARENT=00-" + traceID + "-0123456789abcdef-01"}
	first := startHolder(t, env...)
	first.waitUntilHeld(t)
	second := startHolder(t, env...)
	waitForWaiter(t, dir)
	first.end(t)
	second.waitUntilHeld(t)
	second.end(t)

	received.mu.Lock()
	defer received.mu.Unlock()
	var acquires, holds []*tracepb.Span
	for _, s := range received.spans {
		if textOf(s, "holdfast.lock") != "order" || hex.EncodeToString(s.TraceId) != traceID {
			t.Errorf("span %s of trace %s: %v", s.Name, hex.EncodeToString(s.TraceId), s.Attributes)
		}
		switch s.Name {
		case "holdfast acquire":
			acquires = append(acquires, s)
		case "holdfast hold":
			holds = append(holds, s)
		}
	}
	if len(acquires) != 2 || len(holds) != 2 {
		t.Fatalf("%d acquires and %d holds", len(acquires), len(holds))
	}
	before, after, wait := holds[0], holds[1], acquires[1]
	if before.StartTimeUnixNano > after.StartTimeUnixNano {
		before, after = after, before
	}
	if textOf(wait, "holdfast.id") != textOf(after, "holdfast.id") {
		wait = acquires[0]
	}
	if numberOf(before, "holdfast.token") >= numberOf(after, "holdfast.token") {
		t.Errorf("the tokens are %d and %d", numberOf(before, "holdfast.token"), numberOf(after, "holdfast.token"))
	}
	if wait.StartTimeUnixNano >= before.EndTimeUnixNano || wait.EndTimeUnixNano > after.StartTimeUnixNano ||
		len(after.Links) != 1 || hex.EncodeToString(after.Links[0].SpanId) != hex.EncodeToString(wait.SpanId) {
		t.Errorf("the second process waited from %d to %d, links %v", wait.StartTimeUnixNano, wait.EndTimeUnixNano,
			after.Links)
	}
	if end := textOf(before, "holdfast.end"); end != string(holdfast.EventReleased) {
		t.Errorf("the first hold has the end %q", end)
	}
}

// waitForWaiter waits until a claim waits for the lock.
func waitForWaiter(t *testing.T, dir string) {
	t.Helper()
	client, err := holdfast.Open(t.Context(), "file://"+dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for lock, err := range client.Watch(t.Context(), "order") {
		if err != nil {
			t.Fatal(err)
		}
		if len(lock.Waiters) > 0 {
			return
		}
	}
}

func textOf(s *tracepb.Span, name string) string {
	for _, a := range s.Attributes {
		if a.Key == name {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

func numberOf(s *tracepb.Span, name string) int64 {
	for _, a := range s.Attributes {
		if a.Key == name {
			return a.Value.GetIntValue()
		}
	}
	return 0
}
