package s3

import "time"

// SetMaxLateness shortens foreign.MaxLateness for all stores that are opened after it.
func SetMaxLateness(d time.Duration) { maxLateness = d }
