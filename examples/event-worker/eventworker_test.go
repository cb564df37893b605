package main

import (
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/story"
)

// TestMain is also the program of the workers.
func TestMain(m *testing.M) {
	if _, ok := story.Role(); ok {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestEventWorker: each order is handled once, however often it is delivered, and although two workers are lost.
func TestEventWorker(t *testing.T) {
	if err := tellStory(t.Output()); err != nil {
		t.Error(err)
	}
}
