package torture

import (
	"math"
	"time"
)

// histogram counts durations in buckets, each a quarter larger than the one before, from 10 us on. So it takes the same
// room however long a run lasts.
type histogram struct {
	counts [96]int64
	n      int64
	max    time.Duration
}

const (
	firstBucket = 10 * time.Microsecond
	bucketStep  = 1.25
)

func (h *histogram) add(d time.Duration) {
	i := 0
	if d > firstBucket {
		i = min(len(h.counts)-1, int(math.Ceil(math.Log(float64(d)/float64(firstBucket))/math.Log(bucketStep))))
	}
	h.counts[i]++
	h.n++
	h.max = max(h.max, d)
}

// bound is the largest duration of bucket i.
func bound(i int) time.Duration {
	return time.Duration(float64(firstBucket) * math.Pow(bucketStep, float64(i)))
}

// quantile is a bound of the share p of all durations, a quarter too large at most.
func (h *histogram) quantile(p float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rest := int64(math.Ceil(p * float64(h.n)))
	for i, n := range h.counts {
		if rest -= n; rest <= 0 {
			return min(h.max, bound(i))
		}
	}
	return h.max
}

// Distribution is how long something took, in milliseconds.
type Distribution struct {
	Count  int64   `json:"count"`
	Median float64 `json:"median_ms"`
	P99    float64 `json:"p99_ms"`
	Max    float64 `json:"max_ms"`
	// Buckets are the counts, each with the bound of its bucket in milliseconds. Empty ones are left out.
	Buckets [][2]float64 `json:"buckets"`
}

// distribution is the form in which the report shows it.
func (h *histogram) distribution() Distribution {
	d := Distribution{Count: h.n, Median: millis(h.quantile(0.5)), P99: millis(h.quantile(0.99)), Max: millis(h.max),
		Buckets: [][2]float64{}}
	for i, n := range h.counts {
		if n > 0 {
			d.Buckets = append(d.Buckets, [2]float64{millis(bound(i)), float64(n)})
		}
	}
	return d
}

// millis is a duration in milliseconds, with three digits behind the point.
func millis(d time.Duration) float64 { return math.Round(float64(d)/1e3) / 1e3 }
