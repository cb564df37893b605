//go:build !linux && !darwin

package file

import "github.com/holdfast-go/holdfast/engine/record"

// Watcher looks at file events.
func (t *table) Watcher() record.Watcher { return record.WatcherFunc(t.wait) }

// Traits say that clients do not notify each other.
func (t *table) Traits() record.Traits { return record.Traits{} }
