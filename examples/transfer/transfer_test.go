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

// TestTransfer: a server that was stopped for longer than its lease transfers nothing, and the balances add up.
func TestTransfer(t *testing.T) {
	if err := tellStory(t.Output()); err != nil {
		t.Error(err)
	}
}
