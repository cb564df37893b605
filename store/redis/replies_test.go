package redis

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// textScript makes a script of a text.
func textScript(text string) *script {
	return &script{func() scriptContent { return prepareScript(text) }}
}

// TestScriptFiles: each script of this package, and each file that one includes, exists. They are read when they are
// first used.
func TestScriptFiles(t *testing.T) {
	t.Parallel()
	calls := regexp.MustCompile(`loadScript\("([^"]+)"\)`)
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range calls.FindAllStringSubmatch(string(text), -1) {
			found++
			if s := loadScript(call[1]); s.text() == "" || len(s.sha()) != 40 {
				t.Errorf("%s: the script %s is empty", source, call[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d scripts were found", found)
	}
}

// TestMalformedReplies: a reply that no script of ours sends is an error, and is never taken for anything else.
func TestMalformedReplies(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Independent(3))
	a := g.Addrs()
	s := openForTest(t, "redis://"+a[0]).(*store)
	r := openForTest(t, "redlock://"+a[0]+"?addrs="+a[1]+","+a[2]).(*redlockStore)
	for _, text := range []string{
		"return {}", "return {1}", "return {0}", "return {0, 1, 2}", "return {0, 1, 2, 3, 4, {}}", "return {2, {}}", "return {3}", "return {4, 'a'}",
		"return {5}", "return {'a'}", "return 'a'", "return {{}}", "return false", "return -1",
	} {
		at := s.newAcquireLoop(mutex("m", longTTL))
		if _, refused, err := at.runStep(t.Context(), textScript(text), []string{"m"}, nil); err == nil &&
			refused == nil {
			t.Errorf("%s is taken for a grant", text)
		}
		m, err := s.runScript(t.Context(), textScript(text), []string{"m"}, nil)
		b := &round{redlock: r, claim: mutex("m", longTTL), tokens: map[int]int64{}, agreed: map[int64]int{}}
		b.countReply(serverReply{0, m, err})
		if b.granted > 0 {
			t.Errorf("%s is taken for a server's grant", text)
		}
		if _, ok := readLockView(m); ok {
			t.Errorf("%s is taken for a lock", text)
		}
		g := driver.Grant{Claim: mutex("m", longTTL), Token: 1}
		renew := renewCall{store: s, grants: []driver.Grant{g}, done: func(_ int, r driver.Renewal) {
			if _, err := m.ToArray(); r.Err == nil && err != nil {
				t.Errorf("%s is taken for a renewal", text)
			}
		}}
		renew.report(t.Context(), []int{0}, m, nil, err, s.clock.Now())
	}
	if _, err := s.Acquire(t.Context(), mutex("m", longTTL)); errors.Is(err, driver.ErrCorrupt) {
		t.Error(err)
	}
}

// TestRollCallIsSpread: many claims answer a roll call one after the other, so that the server has time for other
// requests.
func TestRollCallIsSpread(t *testing.T) {
	t.Parallel()
	l := &waiterHub{store: &store{}, subscriptions: map[*subscription]struct{}{}}
	for range 1000 {
		l.addSubscription("")
	}
	told := func(message string) (soon int, latest time.Duration) {
		l.handleMessage(message)
		for t := range l.subscriptions {
			after := <-t.notices
			latest = max(latest, after)
			if after < 10*time.Second {
				soon++
			}
		}
		return soon, latest
	}
	if soon, latest := told("roll 100000"); soon > 300 || latest < 50*time.Second || latest > 100*time.Second {
		t.Errorf("%d of 1000 answer within the first tenth, and the last after %v", soon, latest)
	}
	if _, latest := told("roll 0"); latest > 0 {
		t.Errorf("one of a few answers after %v", latest)
	}
}

// TestConfirmWindow: one request that took very long does not make the confirm window long; a link that stays slow
// does.
func TestConfirmWindow(t *testing.T) {
	t.Parallel()
	now := time.Duration(0)
	hand := func() time.Duration { return now }
	s := &store{clock: driver.Clock{Monotonic: hand, Boottime: hand}}
	s.rtt.Store(int64(time.Millisecond))
	took := func(d time.Duration) {
		from := s.clock.Now()
		now += d
		s.recordRoundTrip(from)
	}
	if took(time.Minute); s.confirmWindow() > 2100 {
		t.Errorf("the window is %d ms after a stall", s.confirmWindow())
	}
	for range 60 {
		took(time.Second)
	}
	if ms := s.confirmWindow(); ms < 11000 || ms > 13000 {
		t.Errorf("the window of a link of a second is %d ms", ms)
	}
}
