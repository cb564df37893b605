package redis

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// The findings, without the server and what was seen there (redis.io: "INFO", "Redis persistence", "Key eviction",
// "Redis replication", "ACL", "High availability with Redis Sentinel").
var (
	findingVersion = driver.Finding{Code: "redis-version", Severity: driver.SeverityCritical,
		Why: "not every step works",
		Fix: "use Redis 6.2 or later"}
	findingEviction = driver.Finding{Code: "redis-eviction", Severity: driver.SeverityCritical,
		Why: "it may evict locks and their tokens when memory runs out",
		Fix: "give the locks a Redis of their own if this one is a cache that must evict; there, maxmemory-policy noeviction " +
			"in redis.conf (what CONFIG SET alone has set is lost at the next start)"}
	findingMemory = driver.Finding{Code: "redis-memory", Severity: driver.SeverityWarning,
		Why: "new claims are refused when the memory is full",
		Fix: "raise maxmemory, or give the locks a server of their own"}
	findingAppendOnly = driver.Finding{Code: "redis-appendonly", Severity: driver.SeverityWarning,
		Why: "a server that crashes and restarts has forgotten its locks",
		Fix: "set appendonly yes and appendfsync always"}
	findingAppendFsync = driver.Finding{Code: "redis-appendfsync", Severity: driver.SeverityWarning,
		Why: "if the machine crashes, the server has forgotten the locks of the last second or more",
		Fix: "appendfsync always in redis.conf (what CONFIG SET alone has set is lost at the next start)"}
	findingDiskFailed = driver.Finding{Code: "redis-disk-failed", Severity: driver.SeverityCritical,
		Why: "the server refuses writes, and so all claims, or loses them when it restarts",
		Fix: "make room on its disk, and make the directory of its dir setting writable for it"}
	findingReplica = driver.Finding{Code: "redis-replica", Severity: driver.SeverityCritical,
		Why: "it accepts no claims, and what it knows of locks may be old",
		Fix: "open the primary, or the Sentinels (redis+sentinel://)"}
	findingActiveActive = driver.Finding{Code: "redis-active-active", Severity: driver.SeverityCritical,
		Why: "other servers grant the same locks, and of two writes to a key one is dropped later",
		Fix: "use servers of which one takes writes, or another store"}
	findingMinReplicas = driver.Finding{Code: "redis-min-replicas", Severity: driver.SeverityWarning,
		Why: "replicas follow asynchronously: a failover may forget locks, and a primary that was cut off goes on granting " +
			"and renewing them",
		Fix: "min-replicas-to-write 1 and min-replicas-max-lag 10 in redis.conf of all servers (what CONFIG SET alone has set is " +
			"lost at the next start), and open the store with replicas=1"}
	findingCommandMissing = driver.Finding{Code: "redis-command-missing", Severity: driver.SeverityCritical,
		Why: "steps of locks that need it fail",
		Fix: "remove the rename-command lines of these commands from redis.conf, and restart the server"}
	findingCommandDenied = driver.Finding{Code: "redis-command-denied", Severity: driver.SeverityCritical,
		Why: "steps of locks that need it fail"}
	findingListenDenied = driver.Finding{Code: "redis-listen-denied", Severity: driver.SeverityWarning,
		Why: "waiters poll, and are granted a lock later"}
	findingUnseen = driver.Finding{Code: "redis-unseen", Severity: driver.SeverityUnknown}
	findingClock  = driver.Finding{Code: "redis-clock", Severity: driver.SeverityWarning,
		Why: "tokens are made from the server's clock: after a failover that forgets a lock, its next token may be smaller",
		Fix: "run a time daemon (chrony, ntpd) on all servers"}
	findingSentinelDisagrees = driver.Finding{Code: "redis-sentinel-disagrees", Severity: driver.SeverityCritical,
		Why: "clients that ask different Sentinels acquire the same lock on different servers",
		Fix: "make all Sentinels watch the same primary: SENTINEL REMOVE and SENTINEL MONITOR on those that are wrong"}
	findingSentinelAway = driver.Finding{Code: "redis-sentinel-away", Severity: driver.SeverityWarning,
		Why: "the others may be too few to replace a primary that fails",
		Fix: "start it, or remove it from the URL"}
	findingSentinelQuorum = driver.Finding{Code: "redis-sentinel-quorum", Severity: driver.SeverityWarning,
		Why: "a primary that fails is not replaced, and no lock can be acquired until it returns",
		Fix: "run three Sentinels on different machines, with a quorum of two: SENTINEL SET NAME quorum 2"}
	findingReplicaAway = driver.Finding{Code: "redis-replica-away", Severity: driver.SeverityWarning,
		Why: "if it becomes the primary, this client cannot acquire locks",
		Fix: "make the replica reachable under the address that it announces (replica-announce-ip, replica-announce-port)"}
	findingRedlock = driver.Finding{Code: "redis-redlock", Severity: driver.SeverityWarning,
		What: "Redlock is not recommended",
		Why:  "it relies on the clocks of all its servers, and on no server forgetting a lock when it restarts",
		Fix: "one Redis with appendonly yes and appendfsync always promises more, and etcd, ZooKeeper or PostgreSQL much more; " +
			"use fencing tokens for work that must never be done twice"}
	findingRedlockAway = driver.Finding{Code: "redis-redlock-away", Severity: driver.SeverityWarning,
		Why: "only a minority of the servers of a Redlock may fail",
		Fix: "start the server"}
)

// Examine asks the servers how they are configured. It needs the permission for INFO, and for CONFIG GET to see how
// often the append-only file is synced. It tries the commands of the scripts on the keys of a lock that nobody uses.
func (s *store) Examine(ctx context.Context) ([]driver.Finding, error) {
	var all []driver.Finding
	for _, node := range s.primaryNodes(ctx) {
		server := serverAddress(node)
		info, err := runAsync(ctx, s, func() (string, error) { return node.Do(ctx, node.B().Info().Build()).ToString() })
		switch {
		case isDenied(err):
			all = append(all, withFix(findingUnseen, server, "INFO is refused", "ACL SETUSER <user> +info"))
			continue
		case err != nil:
			if f := s.finalError(err); f != nil {
				return nil, f
			}
			return nil, explainError(err)
		}
		values := readInfo(info)
		all = append(all, findInInfo(server, values)...)
		if values["aof_enabled"] == "1" {
			all = append(all, s.examineFsync(ctx, node, server)...)
		}
		if values["role"] != "slave" {
			all = append(all, s.examineReplicas(ctx, node, values)...)
		}
	}
	tried, err := s.tryCommands(ctx)
	if err != nil {
		return nil, err
	}
	return append(append(all, tried...), s.examineSentinels(ctx)...), nil
}

// serverAddress returns the address of a client of one server, or of the primary that a client for Sentinels follows.
func serverAddress(node rueidis.Client) string {
	if _, away := node.(*lazyClient); away {
		return ""
	}
	for at := range node.Nodes() {
		return at
	}
	return ""
}

// isDenied reports whether a server has refused a command, because of an ACL or because it has no such command.
func isDenied(err error) bool {
	r, ok := rueidis.IsRedisErr(err)
	return ok && (strings.Contains(r.Error(), "NOPERM") || strings.Contains(r.Error(), "unknown command"))
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

// findInInfo returns the findings about one server, from its INFO.
func findInInfo(server string, info map[string]string) (all []driver.Finding) {
	add := func(f driver.Finding, format string, args ...any) {
		all = append(all, f.With(server, fmt.Sprintf(format, args...)))
	}
	var major, minor int
	if n, _ := fmt.Sscanf(info["redis_version"], "%d.%d", &major, &minor); n == 2 &&
		(major < 6 || major == 6 && minor < 2) {
		add(findingVersion, "version %s is older than 6.2", info["redis_version"])
	}
	if limit, _ := strconv.ParseFloat(info["maxmemory"], 64); limit > 0 {
		if p := info["maxmemory_policy"]; p != "" && p != "noeviction" {
			add(findingEviction, "maxmemory-policy is %s", p)
		}
		if used, _ := strconv.ParseFloat(info["used_memory"], 64); used > 0.9*limit {
			add(findingMemory, "%.0f %% of maxmemory are used", 100*used/limit)
		}
	}
	if info["aof_enabled"] == "0" {
		add(findingAppendOnly, "appendonly is off")
	}
	for _, name := range []string{"rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"} {
		if v := info[name]; v != "" && v != "ok" {
			add(findingDiskFailed, "INFO says %s:%s", name, v)
		}
	}
	switch {
	case info["role"] == "slave" && info["slave_read_only"] == "0":
		add(findingActiveActive, "this is a replica that takes writes (replica-read-only is no)")
	case info["role"] == "slave":
		add(findingReplica, "this is a replica")
	case info["role"] == "active-replica": // of KeyDB
		add(findingActiveActive, "this is an active replica (active-replica is yes)")
	case info["crdt_config_version"] != "": // of Redis Enterprise
		add(findingActiveActive, "this is a part of an Active-Active database")
	}
	if n := info["connected_slaves"]; n != "" && n != "0" && info["min_slaves_good_slaves"] == "" {
		add(findingMinReplicas, "it has replicas (%s), and min-replicas-to-write is not set", n)
	}
	return all
}

// examineFsync looks at how often a server syncs its append-only file.
func (s *store) examineFsync(ctx context.Context, node rueidis.Client, server string) []driver.Finding {
	values, err := runAsync(ctx, s, func() (map[string]string, error) {
		return node.Do(ctx, node.B().ConfigGet().Parameter("appendfsync").Build()).AsStrMap()
	})
	if err != nil {
		return []driver.Finding{withFix(findingUnseen, server, "CONFIG GET is refused: appendfsync could not be seen",
			"ACL SETUSER <user> +config|get, or see to it yourself that appendfsync is always")}
	}
	if v := values["appendfsync"]; v != "always" {
		return []driver.Finding{findingAppendFsync.With(server, "appendfsync is "+v)}
	}
	return nil
}

// withFix returns a finding with a subject, with what was seen, and with the setting to change.
func withFix(f driver.Finding, subject, what, fix string) driver.Finding {
	f.Fix = fix
	return f.With(subject, what)
}

var tryCommandsScript = loadScript("try_commands.lua")

// tryCommands runs each command that the scripts use, on keys under a name that nobody uses.
func (s *store) tryCommands(ctx context.Context) ([]driver.Finding, error) {
	if err := s.ensureChannelsKnown(ctx); err != nil {
		return nil, err
	}
	keys := s.keys.allKeys("holdfast-doctor-" + strings.ToLower(rand.Text()))
	all := s.tryListening(ctx, keys[1:2])
	m, err := s.runScript(ctx, tryCommandsScript, keys[:], []string{s.publishCommand(), keys[1]})
	if isReadOnlyReply(err) {
		return all, nil // a replica, which is a finding of its own
	}
	if err != nil {
		f := s.finalError(err)
		if f == nil {
			return nil, explainError(err)
		}
		if isScriptingMissing(err.Error()) {
			return append(all, withFix(findingCommandMissing, "", "the server does not know EVALSHA or EVAL",
				findingCommandMissing.Fix+"; a Sentinel, which has neither, is opened as redis+sentinel://host/primary-name")), nil
		}
		return append(all, withFix(findingCommandDenied, "", "EVALSHA or EVAL is refused", f.Error())), nil
	}
	refused, err := m.AsStrSlice()
	if err != nil {
		return nil, corruptReply("")
	}
	var missing []string
	for i := 0; i+1 < len(refused); i += 2 {
		command, text := refused[i], refused[i+1]
		switch {
		case strings.Contains(text, "nknown"):
			missing = append(missing, command)
		case isReadOnly(text), strings.Contains(text, "OOM"), strings.Contains(text, "NOREPLICAS"),
			strings.Contains(text, "MISCONF"):
			// The server refuses all writes at present. Other findings say why.
		default:
			all = append(all, withFix(findingCommandDenied, "", command+" is refused: "+shortenReply(text),
				aclRule("the '"+command+"' command "+text, s.opts.Layout)))
		}
	}
	if len(missing) > 0 {
		all = append(all, findingCommandMissing.With("", "the server does not know "+strings.Join(missing, ", ")))
	}
	return all, nil
}

// probeListenTimeout is how long a server may take to confirm that a client listens.
const probeListenTimeout = 2 * time.Second

// tryListening listens to a channel, until the server has confirmed it or has refused.
func (s *store) tryListening(ctx context.Context, channels []string) []driver.Finding {
	ctx, cancel := context.WithTimeout(ctx, probeListenTimeout)
	defer cancel()
	listening := rueidis.WithOnSubscriptionHook(ctx, func(e rueidis.PubSubSubscription) {
		if !strings.HasSuffix(e.Kind, "unsubscribe") {
			cancel()
		}
	})
	_, err := runAsync(ctx, s, func() (struct{}, error) {
		err := s.client.Receive(listening, s.subscribeTo(channels), func(rueidis.PubSubMessage) {})
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		s.client.Do(ending, s.unsubscribeFrom(channels))
		return struct{}{}, err
	})
	if !isDenied(err) {
		return nil
	}
	return []driver.Finding{withFix(findingListenDenied, "", "the user may not listen: "+shortenReply(err.Error()),
		aclRule(err.Error(), s.opts.Layout))}
}

func isReadOnlyReply(err error) bool {
	r, ok := rueidis.IsRedisErr(err)
	return ok && isReadOnly(r.Error())
}

// maxClockDifference is how far the clocks of a primary and its replica may be apart. Beyond it, the time that a
// failover takes may not be enough for the next token to be larger.
const maxClockDifference = time.Second

// examineReplicas connects to the replicas of a primary, and compares their clocks with the primary's. It can do so
// only if this package knows the settings of the client, and does it only behind Sentinels, where a replica is used
// later.
func (s *store) examineReplicas(ctx context.Context, primary rueidis.Client, info map[string]string) (all []driver.Finding) {
	if s.topology != sentinel || s.settings == nil {
		return nil
	}
	for i := 0; info["slave"+strconv.Itoa(i)] != ""; i++ {
		fields := map[string]string{}
		for field := range strings.SplitSeq(info["slave"+strconv.Itoa(i)], ",") {
			name, value, _ := strings.Cut(field, "=")
			fields[name] = value
		}
		at := net.JoinHostPort(fields["ip"], fields["port"])
		o := *s.settings
		o.InitAddress, o.ForceSingleClient, o.Sentinel = []string{at}, true, rueidis.SentinelOption{}
		replica, err := connectClient(ctx, o)
		if err != nil {
			all = append(all, findingReplicaAway.With(at, fmt.Sprintf("the replica cannot be reached: %v", err)))
			continue
		}
		difference, err := s.compareClocks(ctx, primary, replica)
		replica.Close()
		if err == nil && difference > maxClockDifference {
			all = append(all, findingClock.With(at, fmt.Sprintf("the replica's clock and the primary's differ by %v",
				difference.Round(time.Millisecond))))
		}
	}
	return all
}

// compareClocks returns by how much two servers' clocks differ at least.
func (s *store) compareClocks(ctx context.Context, a, b rueidis.Client) (time.Duration, error) {
	start := s.clock.Now()
	first, err := s.readTime(ctx, a)
	if err != nil {
		return 0, err
	}
	second, err := s.readTime(ctx, b)
	if err != nil {
		return 0, err
	}
	return max(0, time.Duration(second-first).Abs()*time.Microsecond-s.clock.Since(start)), nil
}

// examineSentinels asks each Sentinel of the URL for the primary, and whether a failover could happen.
func (s *store) examineSentinels(ctx context.Context) (all []driver.Finding) {
	if s.topology != sentinel || s.settings == nil {
		return nil
	}
	name := s.settings.Sentinel.MasterSet
	primaries := map[string]string{} // by Sentinel
	for _, at := range s.settings.InitAddress {
		o := *s.settings
		o.Username, o.Password, o.TLSConfig = o.Sentinel.Username, o.Sentinel.Password, o.Sentinel.TLSConfig
		o.Dialer = o.Sentinel.Dialer
		o.InitAddress, o.ForceSingleClient, o.SelectDB, o.Sentinel = []string{at}, true, 0, rueidis.SentinelOption{}
		c, err := connectClient(ctx, o)
		if err != nil {
			all = append(all, findingSentinelAway.With(at, fmt.Sprintf("the Sentinel does not answer: %v", err)))
			continue
		}
		primary, err := runAsync(ctx, s, func() ([]string, error) {
			return c.Do(ctx, c.B().Arbitrary("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name).Build()).AsStrSlice()
		})
		if err == nil && len(primary) == 2 {
			primaries[at] = net.JoinHostPort(primary[0], primary[1])
		} else {
			primaries[at] = "none of the name " + name
		}
		_, err = runAsync(ctx, s, func() (string, error) {
			return c.Do(ctx, c.B().Arbitrary("SENTINEL", "CKQUORUM", name).Build()).ToString()
		})
		if r, refused := rueidis.IsRedisErr(err); refused && strings.Contains(r.Error(), "NOQUORUM") {
			all = append(all, findingSentinelQuorum.With(at, shortenReply(r.Error())))
		}
		c.Close()
	}
	return append(all, comparePrimaries(s.settings.InitAddress, primaries)...)
}

// comparePrimaries returns a finding if not all Sentinels name the same primary.
func comparePrimaries(sentinels []string, primaries map[string]string) []driver.Finding {
	var texts []string
	named := map[string]bool{}
	for _, at := range sentinels {
		if p, ok := primaries[at]; ok {
			texts = append(texts, at+" names "+p)
			named[p] = true
		}
	}
	if len(named) < 2 {
		return nil
	}
	return []driver.Finding{findingSentinelDisagrees.With("", "the Sentinels name different primaries: "+strings.Join(texts, ", "))}
}

// Examine returns that Redlock is not recommended, and the findings about all servers; see [store.Examine].
func (r *redlockStore) Examine(ctx context.Context) ([]driver.Finding, error) {
	all := []driver.Finding{findingRedlock}
	for i, s := range r.servers {
		server := fmt.Sprintf("server %d", i+1)
		found, err := s.Examine(ctx)
		if err != nil {
			all = append(all, findingRedlockAway.With(server, err.Error())) // a minority may be away
		}
		for _, f := range found {
			f.Subject = strings.TrimSpace(server + " " + f.Subject)
			all = append(all, f)
		}
	}
	return all, nil
}
