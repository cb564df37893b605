package zookeeper

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/sessiontest"
)

// TestOneNameForAllServers: one name with several addresses means a server at each: a server that hangs, or is not
// there, is passed by, and so is an outage of the service that looks names up.
func TestOneNameForAllServers(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(rig.Shared(t).Endpoints()[0])
	mustSucceed(t, err)
	hangs, err := net.Listen("tcp", "127.0.0.3:"+port)
	mustSucceed(t, err)
	defer hangs.Close()
	var lookups atomic.Int64
	s, err := openAs[*store]([]string{"ensemble:" + port}, Options{
		lookup: func(_ context.Context, host string) ([]string, error) {
			if lookups.Add(1) > 1 || host != "ensemble" {
				return nil, errors.New("no answer")
			}
			return []string{"127.0.0.2", "127.0.0.3", "127.0.0.1"}, nil
		}})
	mustSucceed(t, err)
	defer s.Close()
	client := sessiontest.NewClient(t, s, 30*time.Second)
	l := sessiontest.Lock(t, client, t.Name())
	time.Sleep(1100 * time.Millisecond) // a link that breaks sooner counts as a failed try
	s.nodeStore.mu.Lock()
	sessions := slices.Collect(maps.Values(s.nodeStore.sessions))
	s.nodeStore.mu.Unlock()
	for _, c := range sessions {
		mustSucceed(t, c.BreakLink(t.Context()))
	}
	mustSucceed(t, sessiontest.Lock(t, client, t.Name()+"/other").Release())
	mustSucceed(t, l.Release())
	if n := lookups.Load(); n < 2 { // when all were tried
		t.Errorf("looked up %d times", n)
	}
}
