package redis

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// detectShardedChannels asks whether the server has sharded channels. Redis has them from version 7 (redis.io: "Redis
// Pub/Sub", sharded).
func (s *store) detectShardedChannels(ctx context.Context) error {
	p := s.newRetryLoop(driver.MinTTL)
	p.readOnly = true
	for {
		_, err := runAsync(ctx, s, func() (struct{}, error) {
			return struct{}{}, s.client.Do(ctx, s.client.B().PubsubShardnumsub().Build()).Error()
		})
		_, refused := rueidis.IsRedisErr(err)
		// A server that does not know the command refuses it for good. A busy one refuses for now, which says nothing.
		if err == nil || refused && s.finalError(err) != nil {
			s.sharded.Store(err == nil)
			s.shardedKnown.Store(true)
			return nil
		}
		if err = p.waitToRetry(ctx, err); err != nil {
			return err
		}
	}
}

// ensureChannelsKnown finds out, once, whether the servers of a Cluster have sharded channels. A message on a usual
// channel goes to all nodes of a Cluster, while one on a sharded channel goes only to the node of its slot. All clients
// of a Cluster must decide alike, or they would not receive each other's notices. So the servers decide, and not an
// option.
func (s *store) ensureChannelsKnown(ctx context.Context) error {
	if s.topology != cluster || s.shardedKnown.Load() {
		return nil
	}
	return s.detectShardedChannels(ctx)
}

// publishCommand is the command by which scripts send notices. It is an argument of the scripts, since a script that
// names an unknown command would fail on old servers.
func (s *store) publishCommand() string {
	if s.sharded.Load() {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

// subscribeTo is the command by which a client listens to channels.
func (s *store) subscribeTo(channels []string) rueidis.Completed {
	if s.sharded.Load() {
		return s.client.B().Ssubscribe().Channel(channels...).Build()
	}
	return s.client.B().Subscribe().Channel(channels...).Build()
}

// unsubscribeFrom is the command that ends it.
func (s *store) unsubscribeFrom(channels []string) rueidis.Completed {
	if s.sharded.Load() {
		return s.client.B().Sunsubscribe().Channel(channels...).Build()
	}
	return s.client.B().Unsubscribe().Channel(channels...).Build()
}
