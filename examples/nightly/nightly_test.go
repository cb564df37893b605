package main

import (
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/story"
)

// TestMain is also the program of the machines.
func TestMain(m *testing.M) {
	if _, ok := story.Role(); ok {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestNightly: one machine runs the batch. When it is killed, another one resumes it, and each step is done once.
func TestNightly(t *testing.T) {
	if err := tellStory(t.Output(), shortForm); err != nil {
		t.Error(err)
	}
}
