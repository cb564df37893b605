package etcd

import (
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
)

// TestExamine: of a cluster with the usual timing nothing is found. For one with slower elections the finding says from
// which TTL on locks are safe, whatever its heartbeat interval.
func TestExamine(t *testing.T) {
	t.Parallel()
	if w, err := rig.Peer(t, rig.Shared(t)).Examine(t.Context()); err != nil || len(w) > 0 {
		t.Errorf("a cluster with the usual timing: %v, %v", w, err)
	}
	slow := startCluster(t, etcdtest.Options{Members: 1,
		Args: []string{"--heartbeat-interval", "1000", "--election-timeout", "10000"}})
	w, err := rig.Peer(t, slow).Examine(t.Context())
	if err != nil || len(w) != 1 || w[0].Code != "etcd-election-timeout" || !strings.Contains(w[0].What, "no TTL of less than 15s") ||
		!strings.Contains(w[0].Fix, "1m40s or more") {
		t.Errorf("a cluster with slow elections: %v, %v", w, err)
	}
}

// TestExamineCluster: alarms, members that are away or unknown to the client, and a
// cluster of two members are found, and nothing else.
func TestExamineCluster(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, etcdtest.Options{Direct: true})
	open := func(endpoints ...string) driver.Store {
		t.Helper()
		return storetest.Open(t, "etcd://"+strings.Join(endpoints, ","))
	}
	all := cluster.Endpoints()
	s := open(all...)
	storetest.ExpectFindings(t, "a sound cluster", s)
	storetest.ExpectFindings(t, "one endpoint of three", open(all[0]), "etcd-endpoints")
	storetest.ExpectFindings(t, "two endpoints of three", open(all[:2]...), "etcd-endpoints")

	cli, err := cluster.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	status, err := cli.Status(t.Context(), all[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, alarm := range []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
		request := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: alarm}
		maintenance := pb.NewMaintenanceClient(cli.ActiveConnection())
		if _, err := maintenance.Alarm(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		found, _ := s.Examine(t.Context()) // its lease may be refused
		if len(found) != 1 || found[0].Code != "etcd-alarm" || found[0].Fix == "" {
			t.Errorf("the alarm %v: %v", alarm, found)
		}
		request.Action = pb.AlarmRequest_DEACTIVATE
		if _, err := maintenance.Alarm(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Members[2].Kill()
	storetest.ExpectFindings(t, "a member that is away", s, "etcd-member-away")

	two := startCluster(t, etcdtest.Options{Members: 2, Direct: true})
	storetest.ExpectFindings(t, "two members", open(two.Endpoints()...), "etcd-members")
}

// TestExamineStates: what cannot be planted in a cluster of a test is found in what a member would say.
func TestExamineStates(t *testing.T) {
	learner := memberState{endpoint: "a", status: &clientv3.StatusResponse{IsLearner: true}}
	if all := examineStates([]memberState{learner}); len(all) != 1 || all[0].Code != "etcd-learner" {
		t.Errorf("a learner: %v", all)
	}
	for used, found := range map[int64]int{79: 0, 81: 1} {
		full := memberState{endpoint: "a", status: &clientv3.StatusResponse{DbSize: used, DbSizeQuota: 100}}
		all := examineStates([]memberState{full})
		if len(all) != found || found > 0 && all[0].Code != "etcd-quota" {
			t.Errorf("%d %% of the quota: %v", used, all)
		}
	}
	for endpoint, found := range map[string]bool{"http://db.example:2379": true, "https://db.example:2379": false,
		"http://127.0.0.1:2379": false, "http://localhost:2379": false, "http://[::1]:2379": false} {
		all := examineTransport([]string{endpoint}, true)
		if len(all) > 0 != found || found && all[0].Code != "etcd-plain-text" {
			t.Errorf("%s: %v", endpoint, all)
		}
	}
}

// TestSafeTTL: from the TTL in the finding on, the margin covers a fifth of the longest election timeout that the
// minimum TTL allows for.
func TestSafeTTL(t *testing.T) {
	if ttl := safeTTL(usualMinTTL); ttl != 0 {
		t.Errorf("with the usual timing: %v", ttl)
	}
	for minTTL := 3 * time.Second; minTTL < 80*time.Second; minTTL += time.Second {
		election := time.Duration(float64(minTTL) / 1.5)
		if ttl := safeTTL(minTTL); ttl < minTTL || driver.Margin(ttl) < election/5 {
			t.Errorf("with a minimum of %v: %v, with a margin of %v", minTTL, ttl, driver.Margin(ttl))
		}
	}
}

// TestExamineVersions: the first versions whose leaders check that they still lead are 3.4.31 and 3.5.13.
func TestExamineVersions(t *testing.T) {
	for version, old := range map[string]bool{
		"3.3.27": true, "3.4.30": true, "3.4.31": false, "3.5.0": true, "3.5.12": true, "3.5.13": false, "3.6.0": false,
		"3.7.3": false, "3.5.9-rc.1": true, "4.0.0": false, "": false, "3.x.1": false,
	} {
		all := examineVersions([]member{{"host", version}})
		if len(all) > 0 != old || old && all[0].Code != "etcd-version" {
			t.Errorf("version %q: %v", version, all)
		}
	}
}

// TestExamineAuth: a user who may use only the range of the locks sees all that is examined. What is refused is said.
func TestExamineAuth(t *testing.T) {
	t.Parallel()
	c := startWithUsers(t)
	root, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Username: "root", Password: "root"})
	fails(t, err)
	defer root.Close()
	_, err = root.RoleAdd(t.Context(), "locks")
	fails(t, err)
	_, err = root.RoleGrantPermission(t.Context(), "locks", "locks/", clientv3.GetPrefixRangeEnd("locks/"),
		clientv3.PermissionType(clientv3.PermReadWrite))
	fails(t, err)
	_, err = root.UserAdd(t.Context(), "locks", "secret")
	fails(t, err)
	_, err = root.UserGrantRole(t.Context(), "locks", "locks")
	fails(t, err)
	s := storetest.Open(t, "etcd://locks:secret@"+c.Members[0].Endpoint+"?prefix=locks/")
	storetest.ExpectFindings(t, "a user of the range of the locks", s)

	nobody := storetest.Open(t, "etcd://"+c.Members[0].Endpoint)
	found, err := nobody.Examine(t.Context())
	if len(found) != 3 || slices.ContainsFunc(found, func(f driver.Finding) bool { return f.Code != "etcd-unseen" }) {
		t.Errorf("without a password: %v, %v", found, err)
	}
}
