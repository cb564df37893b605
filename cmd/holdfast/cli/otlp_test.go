package cli

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	metricscollector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracecollector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// otlpReceiver is an OTLP receiver by HTTP.
type otlpReceiver struct {
	*httptest.Server
	called chan struct{} // has an element if there was a request

	mu       sync.Mutex
	services []string
	spans    map[string]*tracepb.Span
	metrics  map[string]string // the label lock of each metric
}

// startOTLPReceiver starts a receiver. If it hangs, it answers nothing until the test ends.
func startOTLPReceiver(t *testing.T, hangs bool) *otlpReceiver {
	t.Helper()
	r := &otlpReceiver{called: make(chan struct{}, 1), spans: map[string]*tracepb.Span{}, metrics: map[string]string{}}
	ended := make(chan struct{})
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		select {
		case r.called <- struct{}{}:
		default:
		}
		if hangs {
			<-ended
			return
		}
		if data, err := io.ReadAll(req.Body); err != nil || r.read(req.URL.Path, data) != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(r.Close)
	t.Cleanup(func() { close(ended) })
	return r
}

func (r *otlpReceiver) read(path string, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if path == "/v1/traces" {
		var export tracecollector.ExportTraceServiceRequest
		if err := proto.Unmarshal(data, &export); err != nil {
			return err
		}
		for _, about := range export.ResourceSpans {
			r.services = append(r.services, attributeText(about.Resource.Attributes, "service.name"))
			for _, scope := range about.ScopeSpans {
				for _, s := range scope.Spans {
					r.spans[s.Name] = s
				}
			}
		}
		return nil
	}
	var export metricscollector.ExportMetricsServiceRequest
	if err := proto.Unmarshal(data, &export); err != nil {
		return err
	}
	for _, about := range export.ResourceMetrics {
		r.services = append(r.services, attributeText(about.Resource.Attributes, "service.name"))
		for _, scope := range about.ScopeMetrics {
			for _, m := range scope.Metrics {
				r.metrics[m.Name] = ""
				for _, p := range append(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()...) {
					r.metrics[m.Name] = attributeText(p.Attributes, "lock")
				}
				for _, p := range m.GetHistogram().GetDataPoints() {
					r.metrics[m.Name] = attributeText(p.Attributes, "lock")
				}
			}
		}
	}
	return nil
}

func attributeText(list []*common.KeyValue, key string) string {
	for _, a := range list {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

const (
	testTraceID     = "0123456789abcdef0123456789abcdef"
	testTraceparent = "TRACEPARENT=00-" + testTraceID + "-0123456789abcdef-01"
)

func (w *workspace) startWithOTLP(variables []string, args ...string) *startedProgram {
	r := w.newProgram(args...)
	r.cmd.Env = append(r.cmd.Env, variables...)
	return r.launch()
}

// TestOTLP: with the usual variables of OpenTelemetry, run and once export spans and metrics. The spans belong to the
// trace of TRACEPARENT, and those of the command to that of run.
func TestOTLP(t *testing.T) {
	t.Parallel()
	for command, hold := range map[string]string{"run": "holdfast hold", "once": "holdfast run"} {
		w, receiver := newWorkspace(t), startOTLPReceiver(t, false)
		variables := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + receiver.URL, "OTEL_SERVICE_NAME=nightly jobs",
			testTraceparent}
		var got result
		for end := time.Now().Add(testTimeout); time.Now().Before(end); {
			got = w.startWithOTLP(variables, command, "a", "sh", "-c", "echo $TRACEPARENT; exit 3").wait()
			if !strings.Contains(got.err, "not complete") { // as it may be on a very busy machine
				break
			}
		}
		if got.check(t, 3); got.err != "" {
			t.Error(got.description)
		}
		receiver.mu.Lock()
		if len(receiver.services) < 2 {
			t.Errorf("%d exports", len(receiver.services))
		}
		for _, name := range receiver.services {
			if name != "nightly jobs" {
				t.Errorf("the service is %q", name)
			}
		}
		top, acquire, held := receiver.spans["holdfast command"], receiver.spans["holdfast acquire"], receiver.spans[hold]
		if top == nil || acquire == nil || held == nil {
			t.Fatalf("spans %v", receiver.spans)
		}
		if hex.EncodeToString(top.ParentSpanId) != "0123456789abcdef" ||
			top.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR ||
			attributeText(top.Attributes, "holdfast.command") != command {
			t.Errorf("span %v", top)
		}
		for _, s := range []*tracepb.Span{acquire, held} {
			if string(s.ParentSpanId) != string(top.SpanId) || hex.EncodeToString(s.TraceId) != testTraceID {
				t.Errorf("span %v", s)
			}
		}
		if want := "00-" + testTraceID + "-" + hex.EncodeToString(top.SpanId) + "-01\n"; got.out != want {
			t.Errorf("the command has TRACEPARENT %q, want %q", got.out, want)
		}
		lock, known := receiver.metrics["holdfast.acquire_attempts"]
		if command == "run" && (lock != "a" || !known) {
			t.Errorf("metrics %v", receiver.metrics)
		}
		receiver.mu.Unlock()
	}
}

// TestOTLPHangs: a receiver that does not answer, or refuses, delays no lock and no release, and the end of the program
// only for a short time. One line of stderr says so.
func TestOTLPHangs(t *testing.T) {
	t.Parallel()
	port, err := servertest.FreePort() // nobody listens on it
	if err != nil {
		t.Fatal(err)
	}
	w, receiver := newWorkspace(t), startOTLPReceiver(t, true)
	var machine pace.Pace
	defer machine.Watch()()
	for _, where := range []string{receiver.URL, "http://127.0.0.1:" + port} {
		r := w.startWithOTLP([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + where}, "run", "--events", "record", "a", "sh", "-c",
			"exit 3")
		if where == receiver.URL {
			<-receiver.called // the program waits for the receiver
			w.runProgram("run", "-n", "a", "true").check(t, 0)
		}
		got := r.wait()
		released := w.eventTime("record", "lock_released")
		took := time.Since(released)
		if got.check(t, 3, "the export by OpenTelemetry is not complete"); strings.Count(got.err, "\n") != 1 {
			t.Error(got.description)
		}
		if took > 8*time.Second+machine.Lost(released) { // the exporters' own time limit is 10 s
			t.Errorf("the program ended %v after the release", took)
		}
		if err := os.Remove(w.filePath("record")); err != nil {
			t.Error(err)
		}
	}
}

// TestOTLPOff: nothing is exported, and TRACEPARENT is what it was, without variables that ask for an export, or if one
// of them forbids it. A protocol or an exporter that is not known is reported.
func TestOTLPOff(t *testing.T) {
	t.Parallel()
	w, receiver := newWorkspace(t), startOTLPReceiver(t, false)
	endpoint := "OTEL_EXPORTER_OTLP_ENDPOINT=" + receiver.URL
	for _, c := range []struct {
		variables []string
		lines     int
		words     string
	}{
		{},
		{variables: []string{"OTEL_SERVICE_NAME=a"}},
		{variables: []string{endpoint, "OTEL_SDK_DISABLED=TRUE"}},
		{variables: []string{endpoint, "OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none"}},
		{[]string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, 1, "only http/protobuf is known"},
		{[]string{endpoint, "OTEL_TRACES_EXPORTER=zipkin", "OTEL_METRICS_EXPORTER=none"}, 1, "known are otlp and none"},
	} {
		got := w.startWithOTLP(append(c.variables, testTraceparent), "run", "a", "sh", "-c", "echo $TRACEPARENT").wait()
		if got.check(t, 0); c.words != "" {
			got.check(t, 0, c.words)
		}
		if strings.Count(got.err, "\n") != c.lines || "TRACEPARENT="+got.out != testTraceparent+"\n" {
			t.Errorf("%v: %s", c.variables, got.description)
		}
	}
	select {
	case <-receiver.called:
		t.Error("something was exported")
	default:
	}
}
