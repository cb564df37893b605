package etcd

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
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
