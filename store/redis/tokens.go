package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// ReadTokenFloor asks for the time of the server, or of each primary node of a Cluster: tokens are at least that.
func (s *store) ReadTokenFloor(ctx context.Context) (driver.TokenFloor, error) {
	floor := driver.TokenFloor{ByClock: true}
	for _, n := range s.primaryNodes(ctx) {
		micros, err := s.readTime(ctx, n)
		if err != nil {
			return driver.TokenFloor{}, err
		}
		if floor.Token == 0 || micros < floor.Token {
			floor.Token = micros
		}
	}
	return floor, nil
}

// readTime reads the clock of one server, in microseconds since 1970.
func (s *store) readTime(ctx context.Context, c rueidis.Client) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	parts, err := runAsync(ctx, s, func() ([]int64, error) { return c.Do(ctx, c.B().Time().Build()).AsIntSlice() })
	switch {
	case s.life.Err() != nil:
		return 0, driver.ErrClosed
	case err != nil:
		if final := s.finalError(err); final != nil {
			return 0, final
		}
		return 0, explainError(err)
	case len(parts) != 2:
		return 0, fmt.Errorf("%w: the reply to TIME has %d parts", driver.ErrCorrupt, len(parts))
	}
	return parts[0]*1e6 + parts[1], nil
}

// RaiseToken runs one script, which may run twice without harm.
func (s *store) RaiseToken(ctx context.Context, name string, atLeast int64) error {
	if name == "" {
		return driverutil.CheckTokenFloor(ctx, s, atLeast)
	}
	if err := driver.CheckName(name, s.info); err != nil {
		return err
	}
	if s.scripts == redissonScripts {
		if err := s.checkRedisson(name); err != nil {
			return err
		}
	}
	p := s.newRetryLoop(driver.MaxTTL)
	keys, args := s.raiseTokenArgs(name, atLeast)
	_, _, err := p.run(ctx, s.scripts.raiseToken, keys, args)
	return err
}

func (s *store) raiseTokenArgs(name string, atLeast int64) (keys, args []string) {
	number := strconv.FormatInt(atLeast, 10)
	if lock := s.keys.lockKey(name); s.scripts.tokenKey != nil {
		return []string{lock, s.scripts.recordKey(lock), s.scripts.tokenKey(lock)}, []string{number}
	}
	all := s.keys.allKeys(name)
	return all[:s.scripts.keyCount], []string{number, queueRetentionMillis}
}

// ReadTokenFloor asks all servers for their time. A token is at least the time of one server of each majority, so the
// floor is the smallest time of the servers that answer, which must be a majority.
func (r *redlockStore) ReadTokenFloor(ctx context.Context) (driver.TokenFloor, error) {
	floor := driver.TokenFloor{ByClock: true}
	answers := 0
	var failure error
	for _, s := range r.servers {
		of, err := s.ReadTokenFloor(ctx)
		if err != nil {
			failure = err
			continue
		}
		if answers++; floor.Token == 0 || of.Token < floor.Token {
			floor.Token = of.Token
		}
	}
	if answers < r.majority {
		return driver.TokenFloor{}, failure
	}
	return floor, nil
}

// RaiseToken raises the token on a majority of the servers at least. A grant needs a majority, too, so one of its
// servers has the raised token, and the largest of a majority's tokens becomes that of the grant.
func (r *redlockStore) RaiseToken(ctx context.Context, name string, atLeast int64) error {
	if name == "" {
		return driverutil.CheckTokenFloor(ctx, r, atLeast)
	}
	if err := driver.CheckName(name, r.info); err != nil {
		return err
	}
	keys, args := r.servers[0].raiseTokenArgs(name, atLeast)
	q := serverScript{script: plainScripts.raiseToken, keys: keys, args: args}
	_, _, err := r.retryUntilMajority(ctx, driver.MaxTTL, func() (replyCounts, error) {
		return r.countReplies(ctx, driver.MaxTTL, q)
	})
	return err
}
