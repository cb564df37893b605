package etcd

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The findings, without what was seen.
var (
	findingVersion = driver.Finding{Code: "etcd-version", Severity: driver.SeverityWarning,
		Why: "a leader whose disk hangs goes on confirming leases there, though another one has been elected",
		Fix: "use 3.4.31, 3.5.13 or a later version"}
	findingElections = driver.Finding{Code: "etcd-election-timeout", Severity: driver.SeverityWarning,
		Why: "a holder whose leader is cut off may count on its lock for longer than the next leader keeps it"}
)

// Examine looks at the members' versions, and at the smallest TTL that the cluster grants, which says how long its
// elections may take. The lease that it requests for that is revoked at once.
func (s *store) Examine(ctx context.Context) (all []driver.Finding, err error) {
	t := s.nodes
	all = examineVersions(t.memberVersions(ctx))
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := t.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 1})
	if err != nil {
		return all, t.convertError(err)
	}
	_ = t.EndSession(ctx, formatLease(clientv3.LeaseID(r.ID))) // if it fails, the lease expires
	if ttl := safeTTL(toSeconds(r.TTL)); ttl > 0 {
		f := findingElections.With("", fmt.Sprintf("the cluster grants no TTL of less than %v, so its elections may take "+
			"longer than usual", toSeconds(r.TTL)))
		f.Fix = fmt.Sprintf("give locks a TTL of %v or more, unless its heartbeat interval is less than %v", ttl,
			driver.Margin(toSeconds(r.TTL)))
		all = append(all, f)
	}
	return all, nil
}

// examineVersions returns a finding for each member that is too old.
func examineVersions(members []member) (all []driver.Finding) {
	for _, m := range members {
		if tooOld(m.version) {
			all = append(all, findingVersion.With(m.endpoint, "the server is of version "+m.version))
		}
	}
	return all
}

// member is one server and its version.
type member struct{ endpoint, version string }

// memberVersions asks all servers, and leaves out those that do not answer.
func (t *nodeStore) memberVersions(ctx context.Context) []member {
	endpoints := t.cli.Endpoints()
	members := make([]member, len(endpoints))
	var all sync.WaitGroup
	for i, at := range endpoints {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			if r, err := t.cli.Status(ctx, at); err == nil {
				members[i] = member{at, r.Version}
			}
		})
	}
	all.Wait()
	return members
}

// tooOld reports whether a leader of this version answers keep-alives without a check that it still leads, however long
// it has done nothing else. It is false for a version that it cannot parse.
func tooOld(version string) bool {
	release, _, _ := strings.Cut(version, "-")
	part := strings.Split(release, ".")
	if len(part) != 3 || part[0] != "3" {
		return false
	}
	minor, err := strconv.Atoi(part[1])
	patch, err2 := strconv.Atoi(part[2])
	if err != nil || err2 != nil {
		return false
	}
	return minor < 4 || minor == 4 && patch < 31 || minor == 5 && patch < 13
}

// usualMinTTL is the smallest TTL of a cluster with the usual election timeout of one second.
const usualMinTTL = 2 * time.Second

// safeTTL is the TTL from which on the margin is no less than any heartbeat interval that a cluster with this smallest
// TTL can have; 0 for one with the usual timing. The smallest TTL is one and a half election timeouts, rounded up, and
// etcd refuses to start with a heartbeat interval of more than a fifth of one.
func safeTTL(minTTL time.Duration) time.Duration {
	if minTTL <= usualMinTTL {
		return 0
	}
	// A fifth of an election timeout, which is two thirds of the smallest TTL.
	interval := minTTL * 2 / 15
	ttl := minTTL
	for driver.Margin(ttl) < interval {
		ttl += time.Second
	}
	return ttl
}
