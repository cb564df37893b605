package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/holdfast-go/holdfast"
)

// storePromise is what a store promises as it is usually set up. GUARANTEES.md has the same table, and explains it.
// The layout with which a store shares its locks with other clients may promise less. In JSON it is a set of texts for
// people, next to the codes of storePromise.json.
type storePromise struct {
	Store           string `json:"-"`
	URL             string `json:"-"`
	Tier            string `json:"tier"`
	Survives        string `json:"survives"`
	DeadHolder      string `json:"dead_holder"`         // who removes a dead holder, and when
	KilledAfter     string `json:"killed_holder_after"` // the part of it that matters after a kill
	TokensCanFall   string `json:"tokens_can_fall"`
	SmallestTTL     string `json:"smallest_ttl"`
	HoldersWaiters  string `json:"holders_waiters"`
	WaitersNotified string `json:"waiters_notified"`
	SharesLocksWith string `json:"shares_locks_with,omitempty"`
}

// storePromises has a row per store, in the order of GUARANTEES.md.
var storePromises = []storePromise{
	{Store: "file", URL: "file:///var/lib/holdfast", Tier: "fence-safe",
		Survives:    "restart; after a power cut, tokens and detached claims",
		DeadHolder:  "the next client: within 0.5 s after a kill, else after the TTL",
		KilledAfter: "0.5 s", TokensCanFall: "never", SmallestTTL: "1 s", HoldersWaiters: "256, 64",
		WaitersNotified: "by the kernel"},
	{Store: "etcd", URL: "etcd://host:2379", Tier: "fence-safe",
		Survives:      "restart, power cut, failover",
		DeadHolder:    "the cluster, within TTL + 1 s",
		KilledAfter:   "TTL + 1 s",
		TokensCanFall: "if restored from a snapshot without --bump-revision",
		SmallestTTL:   "1 s (2 s granted by default)", HoldersWaiters: "256, 256",
		WaitersNotified: "by a watch", SharesLocksWith: "etcdctl lock, Go's concurrency.Mutex"},
	{Store: "ZooKeeper", URL: "zookeeper://host:2181", Tier: "fence-safe",
		Survives:      "restart, power cut, failover",
		DeadHolder:    "the ensemble, within TTL + 1.5 ticks",
		KilledAfter:   "TTL + 1.5 ticks",
		TokensCanFall: "if restored from an older snapshot",
		SmallestTTL:   "what the servers allow", HoldersWaiters: "256, 256",
		WaitersNotified: "by a watch", SharesLocksWith: "Curator, kazoo"},
	{Store: "Consul", URL: "consul://127.0.0.1:8500", Tier: "fence-safe",
		Survives:      "restart, power cut, failover",
		DeadHolder:    "the servers, within 2 TTL + 1 s",
		KilledAfter:   "2 TTL + 1 s",
		TokensCanFall: "if restored from an older snapshot",
		SmallestTTL:   "1 s (10 s granted by default)", HoldersWaiters: "64, 64",
		WaitersNotified: "by blocking query", SharesLocksWith: "consul lock, the Lock of Consul's clients"},
	{Store: "PostgreSQL", URL: "postgres://user@host/database", Tier: "fence-safe with fsync and synchronous_commit",
		Survives:      "restart, power cut; failover with synchronous standbys",
		DeadHolder:    "the next client, within TTL + 1 s",
		KilledAfter:   "TTL + 1 s",
		TokensCanFall: "if a row is deleted within 1 min of its last grant, or lost in a failover",
		SmallestTTL:   "1 s", HoldersWaiters: "256, 64",
		WaitersNotified: "by NOTIFY", SharesLocksWith: "ShedLock"},
	{Store: "MySQL, MariaDB", URL: "mysql://user@host/database",
		Tier:          "fence-safe with innodb_flush_log_at_trx_commit = 1, and sync_binlog = 1 if it logs",
		Survives:      "restart, power cut",
		DeadHolder:    "the next client, within TTL + 1 s; on several servers that take writes TTL + 3 s",
		KilledAfter:   "TTL + 1 s",
		TokensCanFall: "if a row is deleted within 1 min of its last grant, or lost in a failover",
		SmallestTTL:   "1 s", HoldersWaiters: "256, 64",
		WaitersNotified: "by polling", SharesLocksWith: "ShedLock"},
	{Store: "NATS", URL: "nats://host:4222/bucket",
		Tier:          "safe with settings: sync_interval: always on all servers",
		Survives:      "restart; power cut with sync_interval: always; failover with three replicas",
		DeadHolder:    "the next client, within TTL + 1 s; in a cluster TTL + 3 s",
		KilledAfter:   "TTL + 1 s",
		TokensCanFall: "if a grant is lost within 1 min: in a power cut, or with its key or bucket",
		SmallestTTL:   "1 s", HoldersWaiters: "256, 64",
		WaitersNotified: "by a watch"},
	{Store: "DynamoDB", URL: "dynamodb://table?region=eu-central-1",
		Tier:          "fence-safe; not on global tables or through DAX",
		Survives:      "as the service promises",
		DeadHolder:    "the next client, within TTL + 3 s",
		KilledAfter:   "TTL + 3 s",
		TokensCanFall: "if an item is deleted or overwritten within 3 s of its last grant",
		SmallestTTL:   "1 s", HoldersWaiters: "256, 64",
		WaitersNotified: "by polling",
		SharesLocksWith: "the AWS lock client, dynamolock, clients with a conditional put"},
	{Store: "Cloud Storage", URL: "gcs://bucket/prefix",
		Tier:          "safe with settings: no rule may remove or hold objects below the prefix",
		Survives:      "as the service promises",
		DeadHolder:    "the next client, within TTL + 1 s",
		KilledAfter:   "TTL + 1 s",
		TokensCanFall: "if an object is deleted within 2 s of its last grant",
		SmallestTTL:   "5 s", HoldersWaiters: "8, 8",
		WaitersNotified: "by polling", SharesLocksWith: "gcslock, Vault"},
	{Store: "S3, MinIO, R2", URL: "s3://bucket/prefix?region=eu-central-1",
		Tier:          "safe with settings: no lifecycle rule within 3 days; MinIO with one server pool",
		Survives:      "as the service promises",
		DeadHolder:    "the next client, within TTL + 3 s",
		KilledAfter:   "TTL + 3 s",
		TokensCanFall: "if an object is deleted within 3 s of its last grant, or with a raised token",
		SmallestTTL:   "1 s", HoldersWaiters: "256, 64",
		WaitersNotified: "by polling", SharesLocksWith: "Terraform's and OpenTofu's S3 lock file"},
	{Store: "Azure Storage", URL: "azure://account/container",
		Tier:          "safe with settings: no rule may remove or keep the blobs; no geo-failover",
		Survives:      "as the service promises",
		DeadHolder:    "the next client, within TTL + 5 s",
		KilledAfter:   "TTL + 5 s",
		TokensCanFall: "if a blob is deleted within 6 s of its last grant, or lost in a failover",
		SmallestTTL:   "1 s", HoldersWaiters: "256, 64",
		WaitersNotified: "by polling", SharesLocksWith: "DistributedLock.Azure, Terraform's azurerm"},
	{Store: "Kubernetes", URL: "kubernetes://namespace",
		Tier:          "safe with settings: the API servers' clocks agree within 1 s",
		Survives:      "restart, power cut, failover",
		DeadHolder:    "the next client, within TTL + 5 s",
		KilledAfter:   "TTL + 5 s",
		TokensCanFall: "if a Lease is deleted within 6 s of its last grant",
		SmallestTTL:   "1 s", HoldersWaiters: "256, 64",
		WaitersNotified: "by a watch", SharesLocksWith: "the leader election of client-go"},
	{Store: "Redis", URL: "redis://host:6379",
		Tier:          "advisory as a rule; better with appendonly, noeviction and replicas",
		Survives:      "what it keeps on disk or on replicas",
		DeadHolder:    "the server, after the TTL",
		KilledAfter:   "TTL",
		TokensCanFall: "after a loss of data, if clocks disagree",
		SmallestTTL:   "1 s", HoldersWaiters: "256, 4096",
		WaitersNotified: "by messages",
		SharesLocksWith: "redis-py, redsync, redislock, rueidislock, Redisson"},
}

// json is the promise for programs.
func (p storePromise) json() fields {
	tier := holdfast.TierFenceSafe
	switch {
	case strings.HasPrefix(p.Tier, "safe with settings"):
		tier = holdfast.TierSettings
	case strings.HasPrefix(p.Tier, "advisory"):
		tier = holdfast.TierAdvisory
	}
	return fields{"kind_of_store": p.Store, "example_url": p.URL, "tier": tier, "texts": p}
}

// shortTier is the tier without its conditions; a star says that there are some.
func (p storePromise) shortTier() string {
	shortest := len(p.Tier)
	for _, end := range []string{";", ":", " with fsync", " with innodb", " as a rule", " with settings"} {
		if i := strings.Index(p.Tier, end); i > 0 {
			shortest = min(shortest, i)
		}
	}
	if shortest == len(p.Tier) {
		return p.Tier
	}
	return p.Tier[:shortest] + "*"
}

// printComparison prints all stores side by side, and then what does not fit into a table.
func printComparison(w io.Writer, asJSON bool) error {
	if asJSON {
		for _, p := range storePromises {
			if err := writeRecord(w, recordStoreKind, p.json()); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"STORE", "TIER", "KILLED HOLDER", "MIN TTL", "HOLDERS, WAITERS", "WAITERS TOLD"}}
	for _, p := range storePromises {
		ttl, _, _ := strings.Cut(strings.TrimPrefix(p.SmallestTTL, "what "), " (")
		rows = append(rows, []string{p.Store, p.shortTier(), p.KilledAfter, ttl, p.HoldersWaiters, p.WaitersNotified})
	}
	if err := writeTable(w, rows); err != nil {
		return err
	}
	sections := []struct {
		title string
		of    func(storePromise) string
	}{
		{"* on conditions", func(p storePromise) string {
			if !strings.HasSuffix(p.shortTier(), "*") {
				return ""
			}
			return p.Tier
		}},
		{"what locks and tokens survive", func(p storePromise) string { return p.Survives }},
		{"when a fencing token can be smaller than an earlier one", func(p storePromise) string { return p.TokensCanFall }},
		{"whose clients share its locks", func(p storePromise) string { return p.SharesLocksWith }},
	}
	for _, s := range sections {
		rows := [][]string{}
		for _, p := range storePromises {
			if text := s.of(p); text != "" {
				rows = append(rows, []string{"  " + p.Store, text})
			}
		}
		if _, err := fmt.Fprintf(w, "\n%s:\n", s.title); err != nil {
			return err
		}
		if err := writeTable(w, rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprint(w, "\nAll of them have mutexes, read-write locks, semaphores, elections and run ledgers.\n"+
		"A Redlock has mutexes and elections. docs/choosing.md helps to choose.\n")
	return err
}
