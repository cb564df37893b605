package mysql

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/shedlock"
)

// Examine also names rows whose times cannot be right, and time zones in which the clients do not exclude each other.
func (s *shedlockTable) Examine(ctx context.Context) ([]driver.Finding, error) {
	all, err := s.table.Examine(ctx)
	if err != nil {
		return nil, err
	}
	suspects, _, err := s.runRead(ctx, s.suspectStmt)
	if err != nil {
		return nil, err
	}
	all = append(all, shedlock.ListTimeFaults(suspects, findingShedLockTime)...)
	if !s.zoneMatters {
		return all, nil
	}
	var ours, servers string
	var winter, summer int64 // by how many seconds the session's time is ahead of UTC
	year := time.Now().UTC().Year()
	january := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
	july := time.Date(year, 7, 1, 0, 0, 0, 0, time.UTC)
	err = s.callServer(ctx, func(ctx context.Context) error {
		return s.db.QueryRowContext(ctx, `select @@session.time_zone, @@global.time_zone,
			timestampdiff(second, ?, from_unixtime(?)), timestampdiff(second, ?, from_unixtime(?))`,
			january.Format(time.DateTime), january.Unix(), july.Format(time.DateTime), july.Unix()).
			Scan(&ours, &servers, &winter, &summer)
	})
	if err != nil {
		return nil, err
	}
	if ours != servers {
		all = append(all, findingShedLockZone.With("",
			fmt.Sprintf("time_zone of this connection is %s, and that of the server is %s", ours, servers)))
	}
	if winter != summer {
		all = append(all, findingShedLockSummer.With("", fmt.Sprintf("time_zone is %s, which has a summer time", ours)))
	}
	return all, nil
}
