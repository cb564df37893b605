package promtext

import (
	"testing"

	"github.com/holdfast-go/holdfast/metrics"
)

// TestText: a text has each metric with its series, the buckets of a histogram among them, and is read as it was
// written. What was not written here is not read.
func TestText(t *testing.T) {
	t.Parallel()
	counter := &metrics.Metric{Name: "a_total", Type: metrics.Counter, Help: "Things.", Labels: []string{"lock"}}
	times := &metrics.Metric{Name: "b_seconds", Type: metrics.Histogram, Help: "Times.", Bounds: []float64{.001, 3600}}
	text := New()
	for _, s := range []metrics.Sample{
		{Metric: counter, Labels: []string{"a \"b\"\n\\\xff"}, Value: 1e7},
		{Metric: times, Count: 6, Sum: 0.25, Counts: []uint64{1, 2, 3}},
	} {
		EachSeries(&s, LabelsOf(&s), func(key string, value float64) { text.Set(s.Metric, key, value) })
	}
	text.Add(counter, SeriesKey("a_total"), 2)
	text.Add(counter, SeriesKey("a_total"), 3)
	const want = `# HELP a_total Things.
# TYPE a_total counter
a_total{lock="a \"b\"\n\\?"} 10000000
a_total 5
# HELP b_seconds Times.
# TYPE b_seconds histogram
b_seconds_bucket{le="0.001"} 1
b_seconds_bucket{le="3600"} 3
b_seconds_bucket{le="+Inf"} 6
b_seconds_sum 0.25
b_seconds_count 6
`
	if got := string(text.Bytes()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if read, ok := Parse(want); !ok || string(read.Bytes()) != want || len(read.Keys(counter)) != 2 {
		t.Errorf("%v: %s", ok, read.Bytes())
	}
	for _, foreign := range []string{"a 1", "a 1\n", "# HELP a b\n# TYPE a counter\nc 1\n", "# TYPE a counter\na\n", "\n"} {
		if _, ok := Parse(foreign); ok {
			t.Errorf("%q is read", foreign)
		}
	}
}
