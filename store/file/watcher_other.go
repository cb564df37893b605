//go:build !linux && !darwin

package file

import "github.com/holdfast-go/holdfast/engine/record"

// Watcher looks at file events. Every client does so: there are no pipes here that stay in a directory.
func (t *table) Watcher() record.Watcher { return record.WatcherFunc(t.wait) }

// Traits say that clients do not notify each other.
func (t *table) Traits() record.Traits { return record.Traits{} }

func (*table) notifyClients(string, []string) {}

type noticePipe struct{}

func (*table) removeDeadPipes() {}

func (*table) closePipes() {}
