package redis

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var forgetScript = loadScript("forget.lua")

// Forget removes the record of a lock that has no claims, which would otherwise be kept for a day.
func (s *store) Forget(ctx context.Context, name string) error {
	if err := driver.CheckName(name, s.info); err != nil {
		return err
	}
	lock := s.keys.lockKey(name)
	keys := []string{lock, lock, s.scripts.recordKey(lock)}
	if s.scripts.tokenKey != nil {
		keys = append(keys, s.scripts.tokenKey(lock))
	}
	if s.opts.Layout == LayoutPlain {
		all := s.keys.allKeys(name)
		keys = []string{lock, all[4], all[1], all[2], all[3]}
	}
	retry := s.newRetryLoop(2 * time.Second)
	m, _, err := retry.run(ctx, forgetScript, keys, nil)
	if err != nil {
		return err
	}
	if readNumber(m) == 0 {
		return &driver.HeldError{}
	}
	return nil
}

// Forget removes the record from all servers.
func (r *redlockStore) Forget(ctx context.Context, name string) error {
	var errs []error
	for _, s := range r.servers {
		errs = append(errs, s.Forget(ctx, name))
	}
	return errors.Join(errs...)
}
