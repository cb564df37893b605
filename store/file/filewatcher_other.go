//go:build !windows

package file

import "github.com/fsnotify/fsnotify"

// fileWatcher watches directories, each by itself.
type fileWatcher = fsnotify.Watcher

func newFileWatcher(string) (*fileWatcher, error) { return fsnotify.NewWatcher() }
