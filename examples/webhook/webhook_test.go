package main

import "testing"

// TestWebhook: a caller whose lock was broken is rejected, and so is one with a token that is none.
func TestWebhook(t *testing.T) {
	if err := tellStory(t.Output()); err != nil {
		t.Error(err)
	}
}
