package cli

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/promtext"
	"github.com/holdfast-go/holdfast/metrics"
)

const (
	metricsFilePause    = time.Second      // between two writes of the file, except for the last one
	metricsFileInterval = 30 * time.Second // between two writes if nothing happens but renewals
	metricsFileTimeout  = 2 * time.Second  // how long the last write may delay the end of this program
	metricsFileLockTime = time.Second      // how long a write waits for other processes that write the file
	maxMetricsFileSize  = 4 << 20          // bytes; a larger file is not one of ours
	maxMetricsFileNames = 100              // names of locks and keys in one file; later ones count as "other"
	metricsFileHeader   = "# Written by holdfast --metrics-file. Other programs must not write here.\n"
)

// commandMetrics are the metrics of this command, besides those of the library. Those that describe a single use of the
// command describe the last one that has reached that point.
var commandMetrics = struct {
	started, acquired, released, ended, succeeded, exitCode, waited, outcomes *metrics.Metric
}{
	started:   commandGauge("start_timestamp_seconds", "When the command was started last, in seconds since 1970."),
	acquired:  commandGauge("acquired_timestamp_seconds", "When the command acquired its lock or began a run last."),
	released:  commandGauge("released_timestamp_seconds", "When the command ended such a lock or run last."),
	ended:     commandGauge("end_timestamp_seconds", "When the command ended last."),
	succeeded: commandGauge("success_timestamp_seconds", "When a program under the lock or run exited with 0 last."),
	exitCode:  commandGauge("exit_code", "The exit code of the command when it ended last."),
	waited:    commandGauge("wait_seconds", "How long the command waited when it acquired a lock or began a run last."),
	outcomes: &metrics.Metric{Name: "holdfast_command_ends_total", Type: metrics.Counter,
		Labels: []string{"command", "name", "outcome"}, Help: "Uses of the command that have ended, by outcome."},
}

func commandGauge(name, help string) *metrics.Metric {
	return &metrics.Metric{Name: "holdfast_command_" + name, Type: metrics.Gauge, Labels: []string{"command", "name"},
		Help: help}
}

func addMetricsFlag(c *cobra.Command, file *string) {
	c.Flags().Var(nonEmptyString{file}, "metrics-file",
		"add metrics to `FILE`.prom, for the textfile collector of node_exporter")
}

// metricsFile adds what this program measures to a file, from which the textfile collector of node_exporter reads it.
// It must never change what happens to the lock or the command: a goroutine writes, and a write that fails only
// causes a warning. A nil metricsFile ignores everything.
type metricsFile struct {
	path          string
	command, name string
	recorder      *metrics.Recorder
	changed       chan struct{}
	ending        chan struct{} // closed when the last state is known
	done          chan struct{}
	warn          sync.Once

	// of the goroutine that writes
	label    string             // the name as the file has it
	counters map[string]float64 // what the file has of this program's counters already

	mu      sync.Mutex                  // guards what follows
	gauges  map[*metrics.Metric]float64 // the values that are known
	outcome string                      // once it is known
}

// openMetricsFile begins to write a file, if path is not empty. name names the lock, or is a key without its slot.
func openMetricsFile(path, command, name string) (*metricsFile, error) {
	switch {
	case path == "":
		return nil, nil
	case !strings.HasSuffix(path, ".prom"):
		return nil, usageError("--metrics-file: %s must end in .prom: node_exporter reads no other files", quoteName(path))
	}
	f := &metricsFile{
		path: path, command: command, name: name, recorder: metrics.NewRecorder(nil, nil),
		changed: make(chan struct{}, 1), ending: make(chan struct{}), done: make(chan struct{}),
		gauges: map[*metrics.Metric]float64{}, counters: map[string]float64{},
	}
	f.set(commandMetrics.started, seconds(time.Now()))
	go f.writeChanges()
	return f, nil
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// set sets a gauge, and wakes the goroutine that writes.
func (f *metricsFile) set(m *metrics.Metric, value float64) {
	f.mu.Lock()
	f.gauges[m] = value
	f.mu.Unlock()
	f.wake()
}

func (f *metricsFile) wake() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// addEvent measures an event of the library.
func (f *metricsFile) addEvent(e *holdfast.Event) {
	if f == nil {
		return
	}
	f.recorder.Record(e)
	switch phase := e.Kind.Phase(); {
	case phase == holdfast.PhaseGrant:
		f.set(commandMetrics.waited, e.Waited.Seconds())
		f.set(commandMetrics.acquired, seconds(e.Time))
	case phase == holdfast.PhaseLoss, phase == holdfast.PhaseEnd:
		f.set(commandMetrics.released, seconds(e.Time))
	case phase == holdfast.PhaseRenewal && e.Err == nil: // these can wait
	default:
		f.wake()
	}
}

// close adds how this program ends, and writes the file for the last time. It returns after metricsFileTimeout at the
// latest.
func (f *metricsFile) close(end error) {
	if f == nil {
		return
	}
	outcome, code := metricsOutcome(end)
	now := seconds(time.Now())
	f.mu.Lock()
	f.outcome = outcome
	f.gauges[commandMetrics.ended], f.gauges[commandMetrics.exitCode] = now, float64(code)
	if outcome == outcomeSucceeded {
		f.gauges[commandMetrics.succeeded] = now
	}
	f.mu.Unlock()
	close(f.ending)
	select {
	case <-f.done:
	case <-time.After(metricsFileTimeout):
		f.warnIncomplete(errors.New("the disk, or another process that writes it, does not answer"))
	}
}

// outcomeSucceeded and outcomeFailed take the place of the outcome "exited".
const outcomeSucceeded, outcomeFailed = "succeeded", "failed"

// metricsOutcome is the label of an end: the outcome in the file of --events, except that an exit with 0 is told from
// others.
func metricsOutcome(end error) (outcome string, code int) {
	var exit *exitError
	switch {
	case end == nil:
		return outcomeSucceeded, 0
	case !errors.As(end, &exit):
		return string(outcomeUnavailable), exitUnavailable
	case exit.outcomeOrDefault() == outcomeExited:
		return outcomeFailed, exit.code
	}
	return string(exit.outcomeOrDefault()), exit.code
}

// warnIncomplete warns once: the metrics are not worth more than one line on stderr.
func (f *metricsFile) warnIncomplete(err error) {
	f.warn.Do(func() { printMessage("the metrics were not written to %s: %s", quoteName(f.path), errorText(err)) })
}

// writeChanges writes the file until this program ends, in a goroutine of its own.
func (f *metricsFile) writeChanges() {
	defer close(f.done)
	interval := time.NewTicker(metricsFileInterval)
	defer interval.Stop()
	for last := false; !last; {
		select {
		case <-f.ending:
			last = true
		case <-f.changed:
		case <-interval.C:
		}
		if err := f.writeOnce(); err != nil {
			f.warnIncomplete(err)
		}
		if last {
			return
		}
		pause := time.NewTimer(metricsFilePause)
		select {
		case <-f.ending:
		case <-pause.C:
		}
		pause.Stop()
	}
}

// writeOnce adds what is new to the file.
func (f *metricsFile) writeOnce() error {
	// what is not in the file if the write fails is added by the next one
	var added map[string]float64
	err := updateMetricsFile(f.path, func(t *promtext.Text) {
		if f.label == "" {
			f.label = boundName(t, f.name)
		}
		added = f.addTo(t)
	})
	if err == nil {
		f.counters = added
	}
	return err
}

// addTo adds the difference between what was measured and what the file has to its text. It returns what the file has
// then.
func (f *metricsFile) addTo(t *promtext.Text) map[string]float64 {
	total := map[string]float64{}
	add := func(m *metrics.Metric, key string, value float64) {
		total[key] = value
		t.Add(m, key, value-f.counters[key])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &commandMetrics
	for _, m := range []*metrics.Metric{c.started, c.acquired, c.released, c.ended, c.succeeded, c.exitCode, c.waited} {
		key := promtext.SeriesKey(m.Name, "command", f.command, "name", f.label)
		if value, known := f.gauges[m]; known {
			t.Set(m, key, value)
		} else if strings.HasSuffix(m.Name, "_timestamp_seconds") {
			t.Add(m, key, 0) // so that rules can compare it
		}
	}
	outcomes := []string{outcomeSucceeded, outcomeFailed, string(outcomeKilled), string(outcomeLost),
		string(outcomeNotAcquired), string(outcomeUnavailable)} // 0 at least, for increase()
	if f.command == "once" {
		outcomes = append(outcomes, string(outcomeMissed))
	}
	if f.outcome != "" && !slices.Contains(outcomes, f.outcome) {
		outcomes = append(outcomes, f.outcome)
	}
	for _, outcome := range outcomes {
		n := 0.0
		if outcome == f.outcome {
			n = 1
		}
		add(c.outcomes, promtext.SeriesKey(c.outcomes.Name, "command", f.command, "name", f.label, "outcome", outcome), n)
	}
	for _, s := range f.recorder.Collect() {
		if s.Metric.Type == metrics.Gauge {
			continue // those of a process that was killed would remain
		}
		labels := promtext.LabelsOf(&s)
		for i := 0; i < len(labels); i += 2 {
			if labels[i] == "lock" {
				labels[i+1] = f.label
			}
		}
		promtext.EachSeries(&s, labels, func(key string, value float64) { add(s.Metric, key, value) })
	}
	return total
}
