package zookeeper

import (
	"context"
	"iter"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Walk goes through the nodes below the namespace, level by level, where the prefix can stand. What only foreign clients hold is a lock
// if there is a namespace: without one it may be anybody's.
func (t *tree) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Snapshot, error] {
	return func(yield func(sequence.Snapshot, error) bool) {
		type place struct {
			name string // with a slash at its end, or empty
			path string
		}
		dir := prefix[:strings.LastIndexByte(prefix, '/')+1]
		from := place{dir, t.root}
		if dir != "" {
			from.path = t.pathOf(strings.TrimSuffix(dir, "/"))
		}
		for places := []place{from}; len(places) > 0; {
			at := places[0]
			places = places[1:]
			path := at.path
			if path == "" {
				path = "/"
			}
			calls, c, err := t.read(ctx, at == from, func() []*call { return []*call{readCall(opGetChildren, path, false)} })
			if err == nil && !yield(sequence.Snapshot{}, nil) { // there may be much that is no lock
				return
			}
			if err == nil && calls[0].err != nil {
				if calls[0].err == codeNoNode || calls[0].err == codeNoAuth && at != from { // it is not ours to see
					continue
				}
				err = calls[0].err
			}
			if err != nil {
				yield(sequence.Snapshot{}, t.fault(err, path))
				return
			}
			listing := *calls[0]
			mine := false
			for _, key := range listing.rest.texts() {
				if c, ok := parse(key); ok {
					mine = mine || !c.Foreign || t.root != "" && at.name != ""
					continue
				}
				element, ok := unescape(key)
				if name := at.name + element; ok && (strings.HasPrefix(name, prefix) || strings.HasPrefix(prefix, name+"/")) && (at.path != "" || key != "zookeeper") {
					places = append(places, place{name + "/", at.path + "/" + key})
				}
			}
			if name := strings.TrimSuffix(at.name, "/"); mine && strings.HasPrefix(name, prefix) {
				look, err := t.look(ctx, c, name, at.path, calls[0])
				var full sequence.Snapshot
				if err == nil {
					full, err = t.complete(ctx, c, look)
				}
				switch {
				case err == nil:
				case driver.IsFinal(err): // the lock's own
					full = sequence.Snapshot{Name: name}
				default:
					yield(sequence.Snapshot{}, err)
					return
				}
				if !yield(full, err) {
					return
				}
			}
		}
	}
}
