package zookeeper

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// TestParseKey: the keys of every client's claims are decoded, and others are not.
func TestParseKey(t *testing.T) {
	session, note := sessionName(-7), sequence.Payload{ID: "abcdefghijklmnopqrstuvwxyz", Kind: driver.KindSemaphore,
		Limit: 10, Weight: 3}
	for _, end := range []string{endLock, endRead, endWrite, endKazoo, endKazooRead} {
		name := joinEnding(formatStem(session, note), end) + "0000000042"
		c, ok := parseKey(name)
		if !ok || c.Foreign || c.Session != session || c.Payload != note || c.number != 42 || c.ending != end {
			t.Errorf("%s: %+v, %v", name, c, ok)
		}
	}
	for name, want := range map[string]int64{
		"_c_6f1d8e2a-5b1c-4a51-9d53-5d0c7a0a3a11-lock-0000000042":    42, // Curator
		"_c_6f1d8e2a-5b1c-4a51-9d53-5d0c7a0a3a11-__READ__0000000007": 7,
		"_c_6f1d8e2a-5b1c-4a51-9d53-5d0c7a0a3a11-__WRIT__0000000007": 7,
		"_c_0123456789abcdef0123456789abcdef-lock-2147483647":        2147483647, // go-zookeeper
		"_c_0123456789abcdef0123456789abcdef-lock--2147483648":       -2147483648,
		"0123456789abcdef0123456789abcdef__lock__0000000001":         1, // kazoo
		"0123456789abcdef0123456789abcdef__rlock__-2147483647":       -2147483647,
		"lock-0000000009": 9, // plain
		"_c_abcdefghijklmnopqrstuvwxyz-000000000000000a-mutex.1.2-lock-0000000001":  1, // a weight beyond its limit
		"_c_abcdefghijklmnopqrstuvwxyz-000000000000000a-other.1.1-lock-0000000001":  1,
		"_c_ABCDEFGHIJKLMNOPQRSTUVWXYZ-000000000000000a-mutex.1.1-lock-0000000001":  1,
		"_c_abcdefghijklmnopqrstuvwxyz-000000000000000a-mutex.1.1x-lock-0000000001": 1,
	} {
		if c, ok := parseKey(name); !ok || !c.Foreign || c.number != want {
			t.Errorf("%s: %+v, %v", name, c, ok)
		}
	}
	for _, name := range []string{"", "config", "lock-", "lock-1", "lock-00000000001", "x0000000001",
		"locks-0000000001", "0123456789abcdef0123456789abcdef"} {
		if c, ok := parseKey(name); ok {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestSortByArrival: claims are in the order of their numbers while those are ordered, and else in that of their
// creation.
func TestSortByArrival(t *testing.T) {
	for _, k := range []struct {
		names string // with the transaction that made each
		order string
		sound bool
	}{
		{"a-lock-0000000002:7 b-lock-0000000001:6 c__lock__0000000003:8", "b a c", true},
		{"a-lock-2147483647:9 b-lock-2147483647:8", "b a", false},
		{"a-lock--2147483648:9 b-lock-2147483647:8", "b a", false},
		// a writer that became a reader
		{"a-__READ__0000000001:9 b-__WRIT__0000000002:5 a-__WRIT__0000000001:4", "a a b", true},
		{"a-__WRIT__0000000001:9 b-__WRIT__0000000001:5", "b a", false},
		{"a-lock-0000000001:9 b-__WRIT__0000000001:5", "b a", false},
	} {
		var keys []string
		born := map[string]int64{}
		for _, f := range strings.Fields(k.names) {
			key, at, _ := strings.Cut(f, ":")
			keys = append(keys, key)
			born[key] = int64(at[0] - '0')
		}
		all := parseKeys(keys)
		for i := range all {
			all[i].Token = born[all[i].Key]
		}
		if areNumbersOrdered(all) != k.sound {
			t.Errorf("%s: sound is %v", k.names, !k.sound)
		}
		sortByArrival(all, k.sound)
		var got []string
		for _, c := range all {
			got = append(got, c.Key[:1])
		}
		if strings.Join(got, " ") != k.order {
			t.Errorf("%s: %v, want %s", k.names, got, k.order)
		}
	}
}

// TestMergeSecondNodes: the two nodes of a claim count once; where a claim must have two, one without the other is
// a foreign one.
func TestMergeSecondNodes(t *testing.T) {
	one := joinEnding(formatStem(sessionName(1),
		sequence.Payload{ID: "abcdefghijklmnopqrstuvwxyz", Kind: driver.KindMutex, Limit: 1, Weight: 1}), endLock) +
		"0000000001"
	two := strings.Replace(one, "-lock-0000000001", "__lock__0000000002", 1)
	for _, twoNodes := range []bool{false, true} {
		all := mergeSecondNodes(parseKeys([]string{one, "x-lock-0000000003", two}), twoNodes)
		if len(all) != 2 || all[0].Foreign || all[0].second != two {
			t.Errorf("%+v", all)
		}
	}
	for _, key := range []string{one, two} {
		if all := mergeSecondNodes(parseKeys([]string{key}), true); len(all) != 1 || !all[0].Foreign ||
			all[0].Kind != "" {
			t.Errorf("%s alone: %+v", key, all)
		}
		if all := mergeSecondNodes(parseKeys([]string{key}), false); len(all) != 1 || all[0].Foreign {
			t.Errorf("%s alone, where it may be: %+v", key, all)
		}
	}
}

func FuzzEscapeElement(f *testing.F) {
	for _, s := range []string{"a", "", ".", "..", "%", "%00", "%41", "zookeeper", "x-lock-0000000001",
		"__lock__-0000000001", "é\u0085\x7f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.ContainsAny(s, "/\x00") || !slices.Equal([]rune(s), []rune(strings.ToValidUTF8(s, ""))) {
			return
		}
		e := escapeElement(s, true)
		back, ok := unescapeElement(e)
		if !ok || back != s || isClaimKey(e) || e == "" || e == "." || e == ".." || e == "zookeeper" ||
			strings.Contains(e, "/") {
			t.Errorf("%q becomes %q, and that %q, %v", s, e, back, ok)
		}
	})
}
