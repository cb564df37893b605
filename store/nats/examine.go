package nats

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
)

// The findings, without what was seen. The settings are explained in the documentation of NATS under their names.
var (
	findingSync = driver.Finding{Code: "nats-sync", Severity: driver.SeverityWarning,
		What: "sync_interval is not known to be always; a client cannot ask for it",
		Why:  "by default a power cut takes up to two minutes of grants, and so of tokens, although they were acknowledged",
		Fix:  "set sync_interval: always in the block jetstream of all servers, and then sync=always in the URL"}
	findingMemory = driver.Finding{Code: "nats-memory", Severity: driver.SeverityWarning,
		What: "the bucket is kept in memory only",
		Why:  "when its servers are restarted, held locks are free, and tokens can fall",
		Fix:  "make a bucket with storage file"}
	findingAsync = driver.Finding{Code: "nats-async", Severity: driver.SeverityWarning,
		What: "the bucket has persist_mode async",
		Why:  "when its server is killed, the last grants are forgotten",
		Fix:  "make a bucket with the default persist_mode"}
	findingReplicas = driver.Finding{Code: "nats-replicas", Severity: driver.SeverityWarning,
		What: "one server keeps the bucket",
		Why:  "while that server is down nobody can take, renew or release a lock",
		Fix:  "run a cluster of three servers, and set the bucket's replicas to 3"}
	findingEven = driver.Finding{Code: "nats-even", Severity: driver.SeverityWarning,
		Why: "an even number of replicas survives no more failures than one less",
		Fix: "set the bucket's replicas to 3 or 5"}
	findingBehind = driver.Finding{Code: "nats-behind", Severity: driver.SeverityWarning,
		Why: "if one more server fails, nobody can take, renew or release a lock",
		Fix: "start the server, and see that it can reach the others"}
	findingHistory = driver.Finding{Code: "nats-history", Severity: driver.SeverityWarning,
		Why: "each renewal leaves an old revision that nobody reads",
		Fix: "set the bucket's history to 1"}
	findingLimits = driver.Finding{Code: "nats-limits", Severity: driver.SeverityWarning,
		Why: "when the bucket is full, claims, renewals and releases are refused, and locks are lost",
		Fix: "remove the bucket's limits, or give the locks a bucket of their own"}
	findingDirect = driver.Finding{Code: "nats-direct", Severity: driver.SeverityWarning,
		What: "allow_direct is on, so other programs may read the bucket from a replica that is behind",
		Why:  "they can see locks that are free already, or not see those that are held; this client reads from the leader",
		Fix:  "set allow_direct: false for the bucket"}
	findingMarkers = driver.Finding{Code: "nats-markers", Severity: driver.SeverityWarning,
		What: "the bucket does not allow TTLs of single messages, or no rollups",
		Why:  "of each name that was ever locked a marker stays forever",
		Fix:  "set allow_msg_ttl and allow_rollup_hdrs for the bucket (NATS 2.11 or later)"}
	findingRevisions = driver.Finding{Code: "nats-revisions", Severity: driver.SeverityWarning,
		What: "the revisions of the bucket do not begin with the time",
		Why:  "if it is removed and made again, revisions come twice; a former holder can then end another's claim",
		Fix:  "make a bucket with create=true, or with first_seq set to the time in microseconds"}
	findingPlain = driver.Finding{Code: "nats-plain", Severity: driver.SeverityWarning,
		What: "the connection to another machine is not encrypted",
		Why:  "an attacker between this client and the server can read the locks and impersonate the server",
		Fix:  "set tls=true in the URL"}
	findingBlocked = driver.Finding{Code: "nats-blocked", Severity: driver.SeverityWarning,
		Why: "while a server reads nothing, no lock can be renewed or released over this connection for so long",
		Fix: "connect with nats.FlusherTimeout(2*time.Second)"}
	findingBuffer = driver.Finding{Code: "nats-buffer", Severity: driver.SeverityWarning,
		Why: "a write may be sent when a server is back that has lost its last writes, and be taken for another one's",
		Fix: "connect with nats.ReconnectBufSize(-1)"}
	findingReconnects = driver.Finding{Code: "nats-reconnects", Severity: driver.SeverityWarning,
		Why: "after an outage that lasts longer, the connection stays closed, and no lock can be taken any more",
		Fix: "connect with nats.MaxReconnects(-1)"}
)

// maxWriteTimeout is for how long a write may block the user's connection without a finding.
const maxWriteTimeout = 5 * time.Second

// leastFirstRevision is a time in microseconds, of the year 2005. No bucket has had so many writes.
const leastFirstRevision = 1 << 50

// Examine checks the settings of the bucket, and how the server is reached. It needs no permission beyond those that
// locks need.
func (t *table) Examine(ctx context.Context) ([]driver.Finding, error) {
	s, err := t.readSettledState(ctx)
	if err != nil {
		return nil, err
	}
	return t.examineState(s), nil
}

func (t *table) examineState(s *jetstream.StreamInfo) []driver.Finding {
	c, o := &s.Config, &t.conn().Opts
	var all []driver.Finding
	add := func(when bool, f driver.Finding, format string, args ...any) {
		if when {
			all = append(all, f.With(f.Subject, fmt.Sprintf(format, args...)))
		}
	}
	inMemory := c.Storage == jetstream.MemoryStorage
	add(inMemory, findingMemory, "%s", findingMemory.What)
	add(c.PersistMode != jetstream.DefaultPersistMode, findingAsync, "%s", findingAsync.What)
	add(!inMemory && !t.opts.SyncAlways, findingSync, "%s", findingSync.What)
	add(c.Replicas == 1, findingReplicas, "%s", findingReplicas.What)
	add(c.Replicas%2 == 0, findingEven, "%d servers keep the bucket", c.Replicas)
	if behind := replicasBehind(s); len(behind) > 0 {
		add(true, findingBehind, "%d of %d replicas are behind or offline: %s", len(behind), c.Replicas,
			strings.Join(behind, ", "))
	}
	add(c.MaxMsgsPerSubject > 1, findingHistory, "the bucket keeps %d revisions of each key", c.MaxMsgsPerSubject)
	add(c.MaxBytes > 0 || c.MaxMsgs > 0, findingLimits, "the bucket is limited to %s", limitsOf(c))
	add(c.AllowDirect, findingDirect, "%s", findingDirect.What)
	add(!c.AllowMsgTTL || !c.AllowRollup, findingMarkers, "%s", findingMarkers.What)
	add(c.FirstSeq < leastFirstRevision, findingRevisions, "%s", findingRevisions.What)
	add(t.isRemote, findingPlain, "%s", findingPlain.What)
	add(o.FlusherTimeout <= 0 || o.FlusherTimeout > maxWriteTimeout, findingBlocked, "a write may block the connection "+
		"for %v (0s: forever)", o.FlusherTimeout)
	add(o.ReconnectBufSize >= 0, findingBuffer, "the connection keeps up to %d bytes while there is no server",
		o.ReconnectBufSize)
	add(o.MaxReconnect >= 0, findingReconnects, "the connection is given up after %d attempts to reconnect",
		o.MaxReconnect)
	return all
}

// readSettledState reads the bucket's settings and the state of its replicas. Each write leaves them behind for a
// moment, so it asks again for two seconds before it believes that one is.
func (t *table) readSettledState(ctx context.Context) (*jetstream.StreamInfo, error) {
	for tries := 0; ; tries++ {
		stream, err := t.readState(ctx)
		if err != nil {
			return nil, err
		}
		if s := stream.CachedInfo(); tries == 10 || len(replicasBehind(s)) == 0 {
			return s, nil
		}
		if err := t.life.Sleep(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// replicasBehind names the servers that do not have the bucket as it is.
func replicasBehind(s *jetstream.StreamInfo) (names []string) {
	if s.Cluster == nil {
		return nil
	}
	for _, r := range s.Cluster.Replicas {
		if r.Offline || !r.Current {
			names = append(names, r.Name)
		}
	}
	return names
}

// limitsOf names the limits of a stream's size, which can remove records.
func limitsOf(c *jetstream.StreamConfig) string {
	var all []string
	if c.MaxBytes > 0 {
		all = append(all, fmt.Sprintf("%d bytes", c.MaxBytes))
	}
	if c.MaxMsgs > 0 {
		all = append(all, fmt.Sprintf("%d messages", c.MaxMsgs))
	}
	return strings.Join(all, " and ")
}
