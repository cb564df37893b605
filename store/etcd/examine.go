package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// The findings, without the member and what was seen there (etcd.io: "Maintenance", "Tuning", "Runtime
// reconfiguration", "Learner").
var (
	findingVersion = driver.Finding{Code: "etcd-version", Severity: driver.SeverityWarning,
		Why: "a leader whose disk hangs goes on confirming leases there, though another one has been elected",
		Fix: "use 3.4.31, 3.5.13 or a later version"}
	findingElections = driver.Finding{Code: "etcd-election-timeout", Severity: driver.SeverityWarning,
		Why: "a holder whose leader is cut off may count on its lock for longer than the next leader keeps it"}
	findingAlarm = driver.Finding{Code: "etcd-alarm", Severity: driver.SeverityCritical,
		Why: "the cluster refuses writes, and so all claims"}
	findingQuota = driver.Finding{Code: "etcd-quota", Severity: driver.SeverityWarning,
		Why: "when the quota is used up, the cluster refuses all claims until somebody disarms the alarm",
		Fix: "set --auto-compaction-retention=1h, run etcdctl defrag, or raise --quota-backend-bytes"}
	findingMemberAway = driver.Finding{Code: "etcd-member-away", Severity: driver.SeverityWarning,
		Why: "the others may be too few if one more fails",
		Fix: "start it, or remove it with etcdctl member remove"}
	findingEndpoints = driver.Finding{Code: "etcd-endpoints", Severity: driver.SeverityWarning,
		Why: "this client loses its locks when the members that it knows fail, although the cluster serves",
		Fix: "name all members in the URL"}
	findingMembers = driver.Finding{Code: "etcd-members", Severity: driver.SeverityWarning,
		Why: "if one of the two fails, no claim can be made until it returns",
		Fix: "run one member or three"}
	findingLearner = driver.Finding{Code: "etcd-learner", Severity: driver.SeverityWarning,
		Why: "it refuses the requests of clients",
		Fix: "etcdctl member promote, or leave it out of the URL"}
	findingPlainText = driver.Finding{Code: "etcd-plain-text", Severity: driver.SeverityWarning,
		Why: "an attacker between this client and the member can read the password and impersonate the member",
		Fix: "set tls=true in the URL, and --cert-file and --key-file on the members"}
	findingUnseen = driver.Finding{Code: "etcd-unseen", Severity: driver.SeverityUnknown,
		Fix: "give the user the role root, or look yourself"}
)

// Examine looks at the members, their versions, alarms and quotas, and at the smallest TTL that the cluster grants,
// which says how long its elections may take. The lease that it requests for that is revoked at once.
func (s *store) Examine(ctx context.Context) (all []driver.Finding, err error) {
	t := s.nodes
	states := t.readStates(ctx)
	all = append(examineVersions(versionsOf(states)), examineStates(states)...)
	all = append(all, examineTransport(t.cli.Endpoints(), t.cli.Username != "")...)
	all = append(all, t.examineMembers(ctx, states)...)
	all = append(all, t.examineAlarms(ctx)...)
	found, err := t.examineElections(ctx)
	return append(all, found...), err
}

// examineElections asks for a lease of one second, to learn what the cluster grants instead.
func (t *nodeStore) examineElections(ctx context.Context) ([]driver.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := t.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 1})
	if err != nil {
		return nil, t.explainError(err)
	}
	_ = t.EndSession(ctx, formatLease(clientv3.LeaseID(r.ID))) // if it fails, the lease expires
	ttl := safeTTL(toSeconds(r.TTL))
	if ttl == 0 {
		return nil, nil
	}
	f := findingElections.With("", fmt.Sprintf("the cluster grants no TTL of less than %v, so its elections may take "+
		"longer than usual", toSeconds(r.TTL)))
	f.Fix = fmt.Sprintf("give locks a TTL of %v or more, unless its heartbeat interval is less than %v", ttl,
		driver.Margin(toSeconds(r.TTL)))
	return []driver.Finding{f}, nil
}

// memberState is what one endpoint says of its member.
type memberState struct {
	endpoint string
	status   *clientv3.StatusResponse
	err      error
}

// readStates asks all endpoints at once.
func (t *nodeStore) readStates(ctx context.Context) []memberState {
	endpoints := t.cli.Endpoints()
	states := make([]memberState, len(endpoints))
	var all sync.WaitGroup
	for i, at := range endpoints {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			r, err := t.cli.Status(ctx, at)
			if err != nil {
				err = t.explainError(err)
			}
			states[i] = memberState{at, r, err}
		})
	}
	all.Wait()
	return states
}

// member is one server and its version.
type member struct{ endpoint, version string }

func versionsOf(states []memberState) (members []member) {
	for _, m := range states {
		if m.err == nil {
			members = append(members, member{m.endpoint, m.status.Version})
		}
	}
	return members
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

// fullQuota is the part of its quota above which a member's database is nearly full.
const fullQuota = 0.8

// examineStates looks at what each member says of itself.
func examineStates(states []memberState) (all []driver.Finding) {
	for _, m := range states {
		if errors.Is(m.err, driver.ErrDenied) {
			all = append(all, findingUnseen.With(m.endpoint, fmt.Sprintf("the member's state cannot be seen: %v", m.err)))
			continue
		}
		if m.err != nil {
			all = append(all, findingMemberAway.With(m.endpoint, fmt.Sprintf("the member does not answer: %v", m.err)))
			continue
		}
		if m.status.IsLearner {
			all = append(all, findingLearner.With(m.endpoint, "the member is a learner"))
		}
		if used, quota := float64(m.status.DbSize), float64(m.status.DbSizeQuota); quota > 0 && used > fullQuota*quota {
			all = append(all, findingQuota.With(m.endpoint, fmt.Sprintf("the database has used %.0f %% of its quota",
				100*used/quota)))
		}
	}
	return all
}

// examineMembers compares the cluster with the endpoints that this client knows.
func (t *nodeStore) examineMembers(ctx context.Context, states []memberState) (all []driver.Finding) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := t.cli.MemberList(ctx)
	if err != nil {
		return []driver.Finding{findingUnseen.With("", fmt.Sprintf("the members cannot be listed: %v", err))}
	}
	voters := 0
	for _, m := range r.Members {
		if !m.IsLearner {
			voters++
		}
	}
	if voters == 2 {
		all = append(all, findingMembers.With("", "the cluster has two members"))
	}
	known := map[uint64]bool{}
	for _, m := range states {
		if m.err == nil {
			known[m.status.Header.MemberId] = true
		}
	}
	// An endpoint may be a balancer's, behind which there are several members.
	if len(states) == 1 && voters > 1 || len(known) == len(states) && len(known) < voters {
		all = append(all, findingEndpoints.With("", fmt.Sprintf("the cluster has %d members, and the URL names %d", voters,
			len(states))))
	}
	return all
}

// alarmFixes say what ends an alarm.
var alarmFixes = map[pb.AlarmType]string{
	pb.AlarmType_NOSPACE: "raise --quota-backend-bytes or compact (etcdctl compact, etcdctl defrag), and then etcdctl alarm disarm",
	pb.AlarmType_CORRUPT: "replace the member, whose data differ from the others' (etcdctl member remove, member add)",
}

// examineAlarms lists the alarms of the cluster.
func (t *nodeStore) examineAlarms(ctx context.Context) (all []driver.Finding) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := t.cli.AlarmList(ctx)
	if err != nil {
		return []driver.Finding{findingUnseen.With("", fmt.Sprintf("the alarms cannot be listed: %v", err))}
	}
	for _, a := range r.Alarms {
		f := findingAlarm.With("member "+strconv.FormatUint(a.MemberID, 16), "the alarm "+a.Alarm.String()+" is raised")
		f.Fix = alarmFixes[a.Alarm]
		all = append(all, f)
	}
	return all
}

// examineTransport returns the endpoints of other machines that are reached without TLS. Without a password there is
// less to be read, but an attacker can still answer.
func examineTransport(endpoints []string, password bool) (all []driver.Finding) {
	for _, at := range endpoints {
		u, err := url.Parse(at)
		if err != nil || u.Scheme != "http" {
			continue
		}
		if password && !driverutil.IsLoopback(u.Hostname()) {
			all = append(all, findingPlainText.With(at, "the password is sent without TLS"))
		}
	}
	return all
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
