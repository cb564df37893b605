package zookeeper

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// clockNode is written to learn the time. No lock's path contains it: in a lock's path two digits follow a %.
const clockNode = "%clock"

// ReadClock implements record.Table. ZooKeeper tells a time only with what is written, by the clock of the leader
// and in milliseconds. So it costs one write, of an empty node.
func (tb *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	if tb.life.Err() != nil {
		return now, 0, driver.ErrClosed
	}
	path := tb.t.root + "/" + clockNode
	for try := 0; ; try++ {
		set := zk.SetData(path, nil, zk.AnyVersion)
		err := callServer(ctx, func(ctx context.Context) error {
			return tb.t.write(ctx, &zk.Write{Calls: []*zk.Call{set}})
		})
		if err != nil {
			return now, 0, tb.t.explainError(err, path)
		}
		stat, err := set.Stat()
		switch {
		case err == nil:
			return time.UnixMilli(stat.Mtime), time.Millisecond, nil
		case err != zk.CodeNoNode || try >= 3: // the bound is for somebody who keeps removing the node
			return now, 0, tb.t.explainError(err, path)
		}
		if err := tb.createFolder(ctx, path); err != nil {
			return now, 0, tb.t.explainError(err, path)
		}
	}
}
