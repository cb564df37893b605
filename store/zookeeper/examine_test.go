package zookeeper

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// TestExamine: servers that are away, that grant other session timeouts than the others, or do not tell them, are
// found, and so are nodes that anyone may change, and servers that refuse requests by themselves. Nothing is found in
// a sound ensemble, in any layout.
func TestExamine(t *testing.T) {
	t.Parallel()
	e, err := zktest.Start(t.Context(), zktest.Options{Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	open := func(o Options) driver.Store {
		t.Helper()
		s, err := New(t.Context(), e.Endpoints(), &o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	s := open(Options{})
	for _, layout := range []Layout{LayoutCurator, LayoutPlain, LayoutCuratorSemaphore} {
		storetest.ExpectFindings(t, "a sound ensemble, layout "+string(layout), open(Options{Layout: layout}))
	}
	auth := []Auth{{"digest", "user:secret"}}
	storetest.ExpectFindings(t, "credentials", open(Options{Auth: auth}))
	storetest.ExpectFindings(t, "credentials and open nodes", open(Options{Auth: auth, ACL: Anyone}), "zookeeper-acl")

	member := e.Members[2]
	file := member.Args[len(member.Args)-1]
	sound, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	restart := func(old, new string) {
		t.Helper()
		text := strings.Replace(string(sound), old, new, 1)
		if text == string(sound) {
			t.Fatalf("%s is not in %s", old, sound)
		}
		member.Kill()
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), member.Start(), e.Ready(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	restart("maxSessionTimeout=90000000", "maxSessionTimeout=40000")
	storetest.ExpectFindings(t, "another bound on one server", s, "zookeeper-session-bounds")
	restart("maxSessionTimeout=90000000", "maxSessionTimeout=20000")
	storetest.ExpectFindings(t, "a small bound on one server", s, "zookeeper-max-session", "zookeeper-session-bounds")
	restart("4lw.commands.whitelist=*", "4lw.commands.whitelist=srvr")
	storetest.ExpectFindings(t, "a server that does not tell its configuration", s, "zookeeper-unseen")
	member.Kill()
	member.Args = append([]string{member.Args[0], "-Dzookeeper.enableEagerACLCheck=true"}, member.Args[1:]...)
	if err := errors.Join(os.WriteFile(file, sound, 0o600), member.Start(), e.Ready(t.Context())); err != nil {
		t.Fatal(err)
	}
	storetest.ExpectFindings(t, "a server that refuses requests by itself", s, "zookeeper-eager-acl")
	member.Kill()
	storetest.ExpectFindings(t, "a server that is away", s, "zookeeper-server-away")
	_ = s.Close()
	if _, err := s.Examine(t.Context()); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("a closed store: %v", err)
	}
}

// TestExamineStates: what cannot be planted in a server of a test is found in what a server would say.
func TestExamineStates(t *testing.T) {
	sound := serverState{server: "a", version: "3.8.0", mode: "follower", tick: 2 * time.Second, minTTL: 4 * time.Second,
		maxTTL: 40 * time.Second}
	for code, change := range map[string]func(s *serverState){
		"":                    func(s *serverState) {},
		"zookeeper-version":   func(s *serverState) { s.version = "3.4.14" },
		"zookeeper-read-only": func(s *serverState) { s.mode = "read-only" },
		"zookeeper-tick":      func(s *serverState) { s.tick = 11 * time.Second },
		"zookeeper-unseen":    func(s *serverState) { s.mode = "" },
	} {
		s := sound
		change(&s)
		all := examineStates([]serverState{s})
		if len(all) > 1 || len(all) == 1 && all[0].Code != code || len(all) == 0 && code != "" {
			t.Errorf("want %q: %v", code, all)
		}
	}
}

// TestForget: the node of a lock that was forgotten is gone. One that is held is not forgotten.
func TestForget(t *testing.T) {
	t.Parallel()
	s := rig.Peer(t, rig.Shared(t))
	c := mutexClaim("forgotten")
	if _, err := s.Acquire(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := s.Forget(t.Context(), c.Name); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a held lock: %v", err)
	}
	if err := s.Release(t.Context(), c, ""); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Forget(t.Context(), c.Name); err != nil {
			t.Error(err)
		}
	}
}
