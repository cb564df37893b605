//go:build unix && !linux

package main

// releaseStartPages does nothing on this system.
func releaseStartPages() {}
