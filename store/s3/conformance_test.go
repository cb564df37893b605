package s3_test

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/s3"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

// TestConformance: the store keeps every promise of the contract, and in Terraform's layout refuses what that does not
// support. It runs before the other tests, because it keeps the machine busy, and with all its counts with -prove.
func TestConformance(t *testing.T) {
	effort := 0.4
	if *prove {
		effort = 1
	}
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			storetest.Conform(t, newHarness(t, startServer(t).URL, layoutOptions(layout)),
				drivertest.Options{Effort: effort, Parallel: 16})
		})
	}
}

// TestConformanceLossy: all promises hold while two of a hundred requests lose their replies, and two are refused, on a
// service that deletes without comparing.
func TestConformanceLossy(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.SetFlaws(s3test.Flaws{DeleteBlindly: true})
	h := newHarness(t, s.URL, nil)
	h.Kill, h.Cut, h.Heal = nil, nil, nil // these are for the clients that lose nothing
	storetest.Conform(t, h, drivertest.Options{LostReplies: 2, Refusals: 2, Effort: 0.3,
		Parallel: 16})
}

// TestConformanceMinIO: the store keeps its promises on MinIO, even when that is killed and comes back.
func TestConformanceMinIO(t *testing.T) {
	t.Parallel()
	m, err := s3test.StartMinIO(bucket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	h := newHarness(t, m.URL(), &s3.Options{Prefix: "locks/"})
	h.Restart = func(context.Context) error {
		m.Kill()
		return m.StartAgain()
	}
	effort := 0.2
	if *prove {
		effort = 1
	}
	storetest.Conform(t, h, drivertest.Options{Effort: effort, Parallel: 8})
}
