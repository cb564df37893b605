package redis

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

var (
	examine        = storetest.Examine
	expectFindings = storetest.ExpectFindings
)

// soundSettings are those of a server of which nothing is found.
var soundSettings = []string{"--appendonly", "yes", "--appendfsync", "always"}

// TestExamine: each setting that makes locks less safe is found, and nothing else. Of a sound server nothing is found,
// also while locks are held and waited for. An examination leaves no keys.
func TestExamine(t *testing.T) {
	t.Parallel()
	server := startServer(t, soundSettings...)
	s := openForTest(t, "redis://"+server.Addr)
	expectFindings(t, "a sound server", s)
	if keys := sendCommand(t, server, "DBSIZE"); keys != ":0" {
		t.Errorf("the examination has left keys: %s", keys)
	}
	g := acquire(t, s, mutex("held", longTTL))
	fair := mutex("fair", longTTL)
	fair.Fair = true
	acquire(t, s, fair)
	expectFindings(t, "a server in use", s)
	if r := renew(t, s, g); r.Err != nil {
		t.Error(r.Err)
	}
	set := func(words ...string) { sendCommand(t, server, append([]string{"CONFIG", "SET"}, words...)...) }
	for _, c := range []struct {
		what          string
		set, soundSet []string
		found         string
	}{
		{"eviction", []string{"maxmemory", "1gb", "maxmemory-policy", "allkeys-lru"},
			[]string{"maxmemory", "0", "maxmemory-policy", "noeviction"}, "redis-eviction"},
		{"eviction of expiring keys", []string{"maxmemory", "1gb", "maxmemory-policy", "volatile-ttl"},
			[]string{"maxmemory", "0", "maxmemory-policy", "noeviction"}, "redis-eviction"},
		{"a full memory", []string{"maxmemory", usedMemory(t, server)}, []string{"maxmemory", "0"}, "redis-memory"},
		{"no append-only file", []string{"appendonly", "no"}, []string{"appendonly", "yes"}, "redis-appendonly"},
		{"a sync per second", []string{"appendfsync", "everysec"}, []string{"appendfsync", "always"}, "redis-appendfsync"},
	} {
		set(c.set...)
		expectFindings(t, c.what, s, c.found)
		set(c.soundSet...)
	}
	set("maxmemory-policy", "allkeys-lru") // without a maximum nothing is evicted
	expectFindings(t, "a policy that is not used", s)
	set("maxmemory-policy", "noeviction")

	replica := startServer(t, append([]string{"--replicaof", "127.0.0.1 " + server.Port}, soundSettings...)...)
	await := func(what, text string) {
		t.Helper()
		if err := redistest.Until(t.Context(), func() bool {
			info, err := server.Do("INFO", "replication")
			return err == nil && strings.Contains(info, text)
		}); err != nil {
			t.Fatal(what, err)
		}
	}
	await("the replica", "connected_slaves:1")
	expectFindings(t, "a primary that goes on without its replicas", s, "redis-min-replicas")
	set("min-replicas-to-write", "1")
	await("the replica's reports", "min_slaves_good_slaves:1")
	expectFindings(t, "a primary that needs its replica", s)
	expectFindings(t, "a replica", openForTest(t, "redis://"+replica.Addr), "redis-replica")
	sendCommand(t, replica, "CONFIG", "SET", "replica-read-only", "no")
	expectFindings(t, "a replica that takes writes", openForTest(t, "redis://"+replica.Addr), "redis-active-active")
}

// TestExamineActiveActive: servers that share their keys with others that take writes are found by what they say in
// INFO. These are the replies of KeyDB and of Redis Enterprise, which were not tried.
func TestExamineActiveActive(t *testing.T) {
	for text, want := range map[string]string{
		"role:active-replica\r\nslave_read_only:0\r\n":               "redis-active-active",
		"role:master\r\n# CRDT Context\r\ncrdt_config_version:1\r\n": "redis-active-active",
		"role:master\r\n": "",
	} {
		codes := ""
		for _, f := range findInInfo("", readInfo(text)) {
			codes += f.Code
		}
		if codes != want {
			t.Errorf("%q: %q, want %q", text, codes, want)
		}
	}
}

// usedMemory returns a little more than the memory that a server uses.
func usedMemory(t *testing.T, server *redistest.Server) string {
	used, err := strconv.Atoi(readInfo(sendCommand(t, server, "INFO", "memory"))["used_memory"])
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(used + used/20)
}

// TestExamineDisk: it is found when a server cannot write to its disk.
func TestExamineDisk(t *testing.T) {
	t.Parallel()
	server := startServer(t, append([]string{"--enable-protected-configs", "yes"}, soundSettings...)...)
	s := openForTest(t, "redis://"+server.Addr)
	dir := server.Dir + "/gone"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sendCommand(t, server, "CONFIG", "SET", "appendonly", "no")
	sendCommand(t, server, "CONFIG", "SET", "dir", dir)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	sendCommand(t, server, "BGSAVE")
	if err := redistest.Until(t.Context(), func() bool {
		info, err := server.Do("INFO", "persistence")
		return err == nil && strings.Contains(info, "rdb_last_bgsave_status:err")
	}); err != nil {
		t.Fatal(err)
	}
	expectFindings(t, "a server whose directory is gone", s, "redis-appendonly", "redis-disk-failed")
}

// TestExamineVersions: only versions before 6.2 are found to be too old.
func TestExamineVersions(t *testing.T) {
	for version, old := range map[string]bool{"5.0.14": true, "6.0.16": true, "6.2.0": false, "7.0.15": false,
		"10.0.1": false, "": false} {
		if found := len(findInInfo("", map[string]string{"redis_version": version})) > 0; found != old {
			t.Errorf("version %q is found to be too old: %v", version, found)
		}
	}
}

// TestExamineCommands: commands that were renamed are found, also those that a lock needs in rare cases only, and those
// without which no lock works at all.
func TestExamineCommands(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"HSTRLEN", "ZREVRANGE", "PEXPIREAT", "TIME", "PUBLISH", "EVALSHA", "EVAL"} {
		server := startServer(t, append([]string{"--rename-command", command, ""}, soundSettings...)...)
		expectFindings(t, command, openForTest(t, "redis://"+server.Addr), "redis-command-missing")
	}
	server := startServer(t, append([]string{"--rename-command", "CONFIG", ""}, soundSettings...)...)
	expectFindings(t, "CONFIG", openForTest(t, "redis://"+server.Addr), "redis-unseen")
}

// TestExamineACL: what a user may not do is found. A user with the permissions that docs/doctor.md names sees
// everything.
func TestExamineACL(t *testing.T) {
	t.Parallel()
	server := startServer(t, soundSettings...)
	const enough = "+@read +@write +@scripting +@pubsub +@connection +time +info +role +config|get"
	for _, c := range []struct {
		rules string
		found []string
	}{
		{"~* &* " + enough, nil},
		{"~* &* " + enough + " -config|get", []string{"redis-unseen"}},
		{"~* &* " + enough + " -info", []string{"redis-unseen"}},
		{"~* &* " + enough + " -pexpireat", []string{"redis-command-denied"}},
		{"~* resetchannels " + enough, []string{"redis-command-denied", "redis-listen-denied"}},
		{"~* &* " + enough + " -subscribe -ssubscribe", []string{"redis-listen-denied"}},
		{"~* &* " + enough + " -@scripting", []string{"redis-command-denied"}},
	} {
		sendCommand(t, server, append([]string{"ACL", "SETUSER", "locks", "reset", "on", ">secret"},
			strings.Fields(c.rules)...)...)
		expectFindings(t, c.rules, openForTest(t, "redis://locks:secret@"+server.Addr), c.found...)
	}
}

// TestExamineSentinels: Sentinels that disagree, that do not answer, or that cannot replace a primary are found, and so
// are replicas that cannot be reached.
func TestExamineSentinels(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Replicated(t.Context()))
	for _, server := range g.Servers {
		for _, setting := range [][]string{{"appendonly", "yes"}, {"appendfsync", "always"}, {"min-replicas-to-write", "1"}} {
			sendCommand(t, server, append([]string{"CONFIG", "SET"}, setting...)...)
		}
	}
	if err := redistest.Until(t.Context(), func() bool {
		info, err := g.Servers[0].Do("INFO")
		return err == nil && strings.Contains(info, "min_slaves_good_slaves:2") &&
			strings.Contains(info, "aof_rewrite_in_progress:0")
	}); err != nil {
		t.Fatal(err)
	}
	sentinels := g.SentinelAddrs()
	url := "redis+sentinel://" + strings.Join(sentinels, ",") + "/" + redistest.MasterName
	s := openForTest(t, url)
	expectFindings(t, "sound Sentinels", s)

	set := func(i int, words ...string) {
		sendCommand(t, g.Sentinels[i], append([]string{"SENTINEL"}, words...)...)
	}
	set(2, "SET", redistest.MasterName, "quorum", "5")
	expectFindings(t, "a quorum that cannot be had", s, "redis-sentinel-quorum")
	set(2, "SET", redistest.MasterName, "quorum", "2")

	other := startServer(t)
	set(2, "REMOVE", redistest.MasterName)
	expectFindings(t, "a Sentinel that knows no such primary", s, "redis-sentinel-disagrees")
	set(2, "MONITOR", redistest.MasterName, "127.0.0.1", other.Port, "1")
	expectFindings(t, "a Sentinel of another primary", s, "redis-sentinel-disagrees")

	g.Sentinels[2].Kill()
	expectFindings(t, "a Sentinel that was stopped", s, "redis-sentinel-away")
}

// TestExamineClocks: a replica is found whose clock differs from the primary's, and one that announces an address under
// which it cannot be reached.
func TestExamineClocks(t *testing.T) {
	t.Parallel()
	clock, err := redistest.NewClock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(clock.Close)
	primary := startServer(t, soundSettings...)
	replica, err := clock.Start(append([]string{"--replicaof", "127.0.0.1 " + primary.Port}, soundSettings...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(replica.Stop)
	s := openForTest(t, "redis://"+primary.Addr).(*store)
	s.topology = sentinel // only behind Sentinels is a replica ever used
	s.settings.InitAddress = nil
	codes := func() string { return strings.Join(examine(t, s), " ") }
	for what, c := range map[string]struct {
		step  time.Duration
		found bool
	}{"ahead": {time.Minute, true}, "behind": {-time.Minute, true}, "right": {0, false}} {
		if err := clock.Step(c.step); err != nil {
			t.Fatal(err)
		}
		if err := redistest.Until(t.Context(), func() bool {
			return strings.Contains(codes(), "redis-clock") == c.found && strings.Contains(codes(), "redis-min-replicas")
		}); err != nil {
			t.Errorf("a replica's clock that is %s: %s", what, codes())
		}
	}
	sendCommand(t, replica, "CONFIG", "SET", "replica-announce-port", "1")
	sendCommand(t, primary, "CLIENT", "KILL", "TYPE", "replica")
	if err := redistest.Until(t.Context(), func() bool { return strings.Contains(codes(), "redis-replica-away") }); err != nil {
		t.Errorf("a replica with a wrong address: %s", codes())
	}
}

// TestExamineRedlock: Redlock itself is a finding, and so is a server that is away.
func TestExamineRedlock(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Independent(3, soundSettings...))
	url := "redlock://" + g.Servers[0].Addr + "?addrs=" + g.Servers[1].Addr + "," + g.Servers[2].Addr
	s := openForTest(t, url)
	expectFindings(t, "a Redlock", s, "redis-redlock")
	sendCommand(t, g.Servers[1], "CONFIG", "SET", "appendonly", "no")
	g.Servers[2].Kill()
	expectFindings(t, "a Redlock that misses a server", s, "redis-appendonly", "redis-redlock", "redis-redlock-away")
}

// TestForget: nothing is left of a lock that was forgotten, in any layout. One that is held is not forgotten.
func TestForget(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, url := range []string{"redis://" + server.Addr, "redis://" + server.Addr + "?layout=redisson"} {
		s := openForTest(t, url)
		c := mutex("m", longTTL)
		acquire(t, s, c)
		if err := s.Forget(t.Context(), "m"); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: a held lock: %v", url, err)
		}
		release(t, s, c)
		for range 2 {
			if err := s.Forget(t.Context(), "m"); err != nil {
				t.Errorf("%s: %v", url, err)
			}
		}
		if keys := sendCommand(t, server, "DBSIZE"); keys != ":0" {
			t.Errorf("%s: keys are left: %s", url, keys)
		}
	}
	s := openForTest(t, "redis://"+server.Addr)
	c := mutex("queue", longTTL)
	c.Fair = true
	acquire(t, s, c)
	release(t, s, c)
	if err := s.Forget(t.Context(), "queue"); err != nil {
		t.Error(err)
	}
	if keys := sendCommand(t, server, "DBSIZE"); keys != ":0" {
		t.Errorf("a queue's keys are left: %s", keys)
	}
}
