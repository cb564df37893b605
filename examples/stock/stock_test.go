package main

import (
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/story"
)

// TestMain is also the program of the servers.
func TestMain(m *testing.M) {
	if _, ok := story.Role(); ok {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestStock: although a failover of Redis gives the lock to two servers, and although the warehouse does not ask for
// the lock, no pair is sold twice, and no sale and no delivery is lost.
func TestStock(t *testing.T) {
	if err := tellStory(t.Output()); err != nil {
		t.Error(err)
	}
}
