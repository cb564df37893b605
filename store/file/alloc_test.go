//go:build !race

package file_test

import (
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/file"
)

// TestAllocationsAlone: a caller that is alone at a lock costs few allocations. With the race detector, which this test
// does without, the pools of package sync keep only a part of what they get.
func TestAllocationsAlone(t *testing.T) {
	store, err := file.New(t.Context(), t.TempDir()+"/store", nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	mutex := client.Mutex("a", nil)
	cycle := func() {
		lease, err := mutex.Lock(t.Context())
		if err == nil {
			err = lease.Release()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 20 { // until the store keeps the files
		cycle()
	}
	const limit = 30
	if n := testing.AllocsPerRun(200, cycle); n > limit {
		t.Errorf("a cycle makes %v allocations, and may make %d", n, limit)
	} else {
		t.Logf("%v allocations", n)
	}
}
