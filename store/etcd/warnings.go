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

// Warnings looks at the members' versions, and at the least TTL that the cluster grants, which tells how long its elections may
// take: the lease that it asks for is given back at once.
func (s *Store) Warnings(ctx context.Context) (warnings []string, err error) {
	t := s.tree
	for _, m := range t.versions(ctx) {
		if tooOld(m.version) {
			warnings = append(warnings, fmt.Sprintf("the etcd server %s is of version %s: a leader whose disk hangs goes on confirming leases there, though another one has been elected; use 3.4.31, 3.5.13 or a later version",
				m.endpoint, m.version))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	r, err := t.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 1})
	if err != nil {
		return warnings, t.fault(err)
	}
	_ = t.EndSession(ctx, hex(clientv3.LeaseID(r.ID))) // else it ends by itself
	if ttl := safeTTL(seconds(r.TTL)); ttl > 0 {
		warnings = append(warnings, fmt.Sprintf("the cluster grants no TTL of less than %v, so its elections may take longer than usual: give locks a TTL of %v or more, unless its heartbeat interval is less than %v; else a holder whose leader is cut off may believe in its lock for longer than the next leader keeps it",
			seconds(r.TTL), ttl, driver.Margin(seconds(r.TTL))))
	}
	return warnings, nil
}

// member is what is asked of one server.
type member struct{ endpoint, version string }

// versions asks all servers that answer.
func (t *tree) versions(ctx context.Context) []member {
	endpoints := t.cli.Endpoints()
	members := make([]member, len(endpoints))
	var all sync.WaitGroup
	for i, at := range endpoints {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, answerTime)
			defer cancel()
			if r, err := t.cli.Status(ctx, at); err == nil {
				members[i] = member{at, r.Version}
			}
		})
	}
	all.Wait()
	return members
}

// tooOld reports whether a leader of this version answers keep-alives without looking whether it still leads, however long
// it has done nothing else. A version that is not understood is none.
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

// usualLeast is the least TTL where elections time out after the usual second.
const usualLeast = 2 * time.Second

// safeTTL is the TTL from which on the margin is no less than any heartbeat interval that a cluster with this least TTL can
// have; 0 for one with the usual timing. The least TTL is one and a half election timeouts, rounded up, and etcd refuses to
// start with a heartbeat interval of more than a fifth of one.
func safeTTL(least time.Duration) time.Duration {
	if least <= usualLeast {
		return 0
	}
	interval := least * 2 / 15
	ttl := least
	for driver.Margin(ttl) < interval {
		ttl += time.Second
	}
	return ttl
}
