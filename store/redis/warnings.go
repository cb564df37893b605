package redis

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// detectShardedChannels asks whether the server has sharded channels. Redis has them from version 7 (redis.io: "Redis
// Pub/Sub", sharded).
func (s *store) detectShardedChannels(ctx context.Context) error {
	p := s.newRetryLoop(driver.MinTTL)
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

// Warnings asks the servers how they are configured, and describes what makes locks on them less safe than they could
// be. It needs the permission for INFO only. It returns an error if a server cannot be asked.
func (s *store) Warnings(ctx context.Context) ([]string, error) {
	var all []string
	for _, node := range s.primaryNodes(ctx) {
		info, err := node.Do(ctx, node.B().Info().Build()).ToString()
		if err != nil {
			if f := s.finalError(err); f != nil {
				return nil, f
			}
			return nil, explainError(err)
		}
		all = append(all, warningsFor(readInfo(info))...)
	}
	return all, nil
}

// readInfo reads the reply of INFO: lines of name:value.
func readInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

// warningsFor returns the warnings about one server, from its INFO (redis.io: "INFO", "Redis persistence", "Key
// eviction", "Redis replication").
func warningsFor(info map[string]string) (ws []string) {
	say := func(format string, args ...any) { ws = append(ws, fmt.Sprintf(format, args...)) }
	var major, minor int
	if n, _ := fmt.Sscanf(info["redis_version"], "%d.%d", &major, &minor); n == 2 &&
		(major < 6 || major == 6 && minor < 2) {
		say("version %s is older than 6.2: not every step works", info["redis_version"])
	}
	if p := info["maxmemory_policy"]; info["maxmemory"] != "0" && p != "" && p != "noeviction" {
		say("maxmemory-policy %s may evict locks and their tokens when memory runs out: set it to noeviction", p)
	}
	if info["aof_enabled"] == "0" {
		say("appendonly is off: a server that crashes and restarts has forgotten its locks; set appendonly yes and appendfsync always")
	}
	if info["role"] == "slave" {
		say("this is a replica: open the primary, or the Sentinels")
	}
	if n := info["connected_slaves"]; n != "" && n != "0" && info["min_slaves_good_slaves"] == "" {
		say("replicas follow asynchronously, and min-replicas-to-write is not set: a failover may forget locks, and a primary that was cut off goes on granting")
	}
	return ws
}
