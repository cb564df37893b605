package cli

import (
	"context"

	"github.com/holdfast-go/holdfast"
)

// telemetry is what run, once and hold measure for others: the metrics file, and what is exported by OpenTelemetry. A
// nil telemetry ignores everything.
type telemetry struct {
	file *metricsFile
	otlp *otlpExport
}

// startTelemetry begins to measure, if the metrics file or the environment asks for it. name is that of the lock, or a
// key without its slot.
func startTelemetry(metricsPath, command, name string) (*telemetry, error) {
	file, err := openMetricsFile(metricsPath, command, name)
	otlp := (*otlpExport)(nil)
	if err == nil {
		otlp = startOTLP(command, name)
	}
	if err != nil || file == nil && otlp == nil {
		return nil, err
	}
	return &telemetry{file: file, otlp: otlp}, nil
}

// withTelemetry runs f, and measures it. A wrong name of the metrics file is a usage error.
func withTelemetry(metricsPath, command, name string, f func(*telemetry) error) error {
	t, err := startTelemetry(metricsPath, command, name)
	if err != nil {
		return err
	}
	err = f(t)
	t.close(err)
	return err
}

// handler returns a receiver of events that measures them and then calls another one.
func (t *telemetry) handler(next func(holdfast.Event)) func(holdfast.Event) {
	if t == nil {
		return next
	}
	return func(e holdfast.Event) {
		t.file.addEvent(&e)
		t.otlp.addEvent(e)
		next(e)
	}
}

// withSpan returns a context for the calls to the library: what they do belongs to the span of this program.
func (t *telemetry) withSpan(ctx context.Context) context.Context {
	if t == nil {
		return ctx
	}
	return t.otlp.withSpan(ctx)
}

// environment is the environment of the command, with this program's span as the parent of those of the command.
func (t *telemetry) environment(env []string) []string {
	if t == nil {
		return env
	}
	return t.otlp.environment(env)
}

// close reports how this program ends. It delays that end for a short time at most.
func (t *telemetry) close(end error) {
	if t == nil {
		return
	}
	exported := t.otlp.startClosing(end)
	t.file.close(end)
	<-exported
}
