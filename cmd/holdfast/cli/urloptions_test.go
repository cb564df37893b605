package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// TestURLOptions: stores --options shows the shape and the options of a store's URL, and opens nothing. It checks the
// URL that it is given, and shows no secret of it.
func TestURLOptions(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	shows := func(args []string, words ...string) {
		t.Helper()
		got := w.runProgram(append([]string{"stores", "--options"}, args...)...)
		got.check(t, 0)
		for _, word := range words {
			if !strings.Contains(got.out, word) {
				t.Errorf("%q: %q is missing in %s", args, word, got.out)
			}
		}
	}
	for _, named := range []string{"redis", "redis://", "Redis://:s3cret@127.0.0.1:1/2?timeout=1s"} {
		shows([]string{named}, "redis://[[user]:password@]host[:6379][/database]\n",
			"timeout: duration, 10ms or more; by default 2s\n    how long an answer may take",
			"foreign-turn: duration, 1ms to 1s, or 0; by default not at all; only with layout=plain\n",
			"tls-cert: file\n")
	}
	shows(nil, "file:///absolute/directory\n", "group: text\n")
	for named, says := range map[string]string{
		"redis://:s3cret@h?timout=1s": "unknown option timout in the store's URL (did you mean timeout?)",
		"redis://:s3cret@":            "the store's URL names no server; it looks like redis://",
		"nosuch://h":                  "unknown store nosuch://",
		"redis:u:s3cret@h":            "a store's URL looks like scheme://",
		"u:s3cret@tcp(h:3306)/db":     "store's URL",
		"host=h password=s3cret":      "store's URL",
	} {
		got := w.runProgram("stores", "--options", named)
		got.check(t, 64, says)
		if strings.Contains(got.err+got.out, "s3cret") {
			t.Errorf("%s: the password is shown", named)
		}
	}
	w.runProgram("stores", "--options", "--compare").check(t, 64, "do not go together")
	w.runProgram("stores", "redis").check(t, 64, "too many arguments")
	got := w.runProgram("stores", "--options", "--json", "redis")
	got.check(t, 0)
	var names []string
	for line := range strings.Lines(got.out) {
		var o struct {
			Type, Scheme, URL, Option, Value, Means string
			Values, Layouts                         []string
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil || o.Type != "store_option" || o.Scheme != "redis" ||
			o.Value == "" || o.Means == "" || strings.Contains(line, "`") {
			t.Errorf("%s: %v", line, err)
		}
		names = append(names, o.Option)
		if o.Option == "layout" && !slices.Equal(o.Values, []string{"plain", "redisson"}) ||
			o.Option == "foreign-turn" && !slices.Equal(o.Layouts, []string{"plain"}) {
			t.Error(line)
		}
	}
	if !slices.Contains(names, "sentinel-user") || !slices.Contains(names, "tls-name") {
		t.Errorf("%q", names)
	}
}
