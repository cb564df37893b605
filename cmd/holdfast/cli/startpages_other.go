//go:build !linux

package cli

// releaseStartPages does nothing on this system.
func releaseStartPages() {}
