// Package promtext is the text format of Prometheus, as the metrics file of the command and the server's /metrics
// have it. A library that reads and writes any such text would make this program larger by more than this package.
package promtext

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/metrics"
)

// Text is metrics with their series, in the order in which they were added.
type Text struct {
	families []*family
	byName   map[string]*family
}

// family is one metric with all its series.
type family struct {
	name, kind, help string
	keys             []string
	values           map[string]float64 // by the name and the labels of the series
}

// New makes an empty text.
func New() *Text { return &Text{byName: map[string]*family{}} }

func (t *Text) family(name, kind, help string) *family {
	f := t.byName[name]
	if f == nil {
		f = &family{name: name, values: map[string]float64{}}
		t.byName[name] = f
		t.families = append(t.families, f)
	}
	f.kind, f.help = kind, help
	return f
}

func (f *family) set(key string, value float64) {
	if _, known := f.values[key]; !known {
		f.keys = append(f.keys, key)
	}
	f.values[key] = value
}

// Set sets a series of a metric.
func (t *Text) Set(m *metrics.Metric, key string, value float64) {
	t.family(m.Name, string(m.Type), m.Help).set(key, value)
}

// Add adds to a series of a metric, which is 0 if the text does not have it.
func (t *Text) Add(m *metrics.Metric, key string, value float64) {
	f := t.family(m.Name, string(m.Type), m.Help)
	f.set(key, f.values[key]+value)
}

// Keys are the series of a metric.
func (t *Text) Keys(m *metrics.Metric) []string {
	if f := t.byName[m.Name]; f != nil {
		return f.keys
	}
	return nil
}

// SeriesKey is a series as the text names it. labels has the name and the value of each label.
func SeriesKey(name string, labels ...string) string {
	if len(labels) == 0 {
		return name
	}
	var list []string
	for i := 0; i < len(labels); i += 2 {
		list = append(list, Label(labels[i], labels[i+1]))
	}
	return name + "{" + strings.Join(list, ",") + "}"
}

var escapeLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// Label is one label as the text has it.
func Label(name, value string) string {
	return name + `="` + escapeLabel.Replace(strings.ToValidUTF8(value, "?")) + `"`
}

func formatValue(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }

// EachSeries calls f with each series of a sample: a histogram has one for each bucket, and two more. labels are
// those of the sample, as SeriesKey takes them.
func EachSeries(s *metrics.Sample, labels []string, f func(key string, value float64)) {
	name := s.Metric.Name
	if s.Metric.Type != metrics.Histogram {
		f(SeriesKey(name, labels...), s.Value)
		return
	}
	count := 0.0
	for i, n := range s.Counts {
		count += float64(n)
		bound := "+Inf"
		if i < len(s.Metric.Bounds) {
			bound = formatValue(s.Metric.Bounds[i])
		}
		f(SeriesKey(name+"_bucket", append(labels[:len(labels):len(labels)], "le", bound)...), count)
	}
	f(SeriesKey(name+"_sum", labels...), s.Sum)
	f(SeriesKey(name+"_count", labels...), float64(s.Count))
}

// LabelsOf are the names and the values of the labels of a sample.
func LabelsOf(s *metrics.Sample) []string {
	var labels []string
	for i, name := range s.Metric.Labels {
		labels = append(labels, name, s.Labels[i])
	}
	return labels
}

// Bytes returns the text.
func (t *Text) Bytes() []byte {
	var b bytes.Buffer
	for _, f := range t.families {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
		for _, key := range f.keys {
			fmt.Fprintf(&b, "%s %s\n", key, formatValue(f.values[key]))
		}
	}
	return b.Bytes()
}

// Parse reads what Bytes has written. It returns false for any other text.
func Parse(text string) (t *Text, ok bool) {
	t = New()
	if !strings.HasSuffix(text, "\n") && text != "" {
		return nil, false
	}
	var current *family
	var help string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			_, help, _ = strings.Cut(rest, " ")
		} else if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			current = t.family(name, kind, help)
		} else {
			space := strings.LastIndexByte(line, ' ')
			value, err := strconv.ParseFloat(line[space+1:], 64)
			if space < 0 || err != nil || current == nil || !strings.HasPrefix(line, current.name) {
				return nil, false
			}
			current.set(line[:space], value)
		}
	}
	return t, true
}
