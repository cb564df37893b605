package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// configured prepares the program with a configuration file and without HOLDFAST_STORE.
func (w *workspace) configured(config string, args ...string) *startedProgram {
	w.Helper()
	w.writeFile("config", config)
	r := w.newProgram(args...)
	r.cmd.Env = w.configuredEnvironment("HOLDFAST_CONFIG=" + w.filePath("config"))
	return r
}

// configuredEnvironment is testEnvironment without HOLDFAST_STORE.
func (w *workspace) configuredEnvironment(more ...string) []string {
	return slices.DeleteFunc(w.testEnvironment(more...), func(v string) bool {
		return strings.HasPrefix(v, "HOLDFAST_STORE=")
	})
}

// TestConfiguration: the file names the store and the defaults of locks, by the patterns of their names; flags and
// HOLDFAST_STORE count before it.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	config := `# the store
store = ` + w.store + `
ttl = 40s
owner = batch job

[lock night*]
ttl = 12s
grace = 1s
signal = INT
wait = 10ms
[lock nightly]
max-hold = 1m
min-hold = 0s
`
	has := func(r *startedProgram, lines ...string) {
		t.Helper()
		got := r.launch().wait()
		text := strings.Join(strings.Fields(got.out), " ")
		for _, line := range lines {
			if got.code != 0 || !strings.Contains(text, line) {
				t.Errorf("want %q; %s", line, got.description)
			}
		}
	}
	has(w.configured(config, "explain", "nightly"), "TTL 12s", "SIGINT", "and killed 1s later", "held for 1m0s at most")
	has(w.configured(config, "explain", "--ttl", "20s", "--signal", "HUP", "nightly"), "TTL 20s", "SIGHUP")
	has(w.configured(config, "explain", "night"), "TTL 12s")
	has(w.configured(config, "explain", "daily"), "TTL 40s", "SIGTERM")
	has(w.configured(config, "stores"), "its URL is from "+w.filePath("config")+":2", "configuration "+w.filePath("config"))
	r := w.configured(config, "stores")
	r.cmd.Env = append(r.cmd.Env, "HOLDFAST_STORE="+w.store+"2")
	has(r, "store file:"+w.filePath("store2"), "its URL is from HOLDFAST_STORE")
	has(w.configured(config, "stores", "--store", w.store+"3"), "store file:"+w.filePath("store3"), "its URL is from --store")

	holder := w.configured(config, "hold", "nightly").launch().awaitOutput("\n")
	w.configured(config, "run", "nightly", "true").launch().wait().check(t, 75, "was not free within 10ms",
		"held by batch job", "(store file://"+w.filePath("store")+", from "+w.filePath("config")+":2)")
	w.configured(config, "run", "-n", "nightly", "true").launch().wait().check(t, 75, "is held by batch job")
	w.configured(config, "acquire", "nightly").launch().wait().check(t, 64, "--ttl is missing")
	holder.signal(unix.SIGTERM)
	holder.wait().check(t, 0)

	w.configured(config, "once", "key", "true").launch().wait().check(t, 0)
	has(w.configured(config, "ledger", "show", "key"), "batch job")
	w.configured(config, "run", "--ttl", "1s", "nightly", "true").launch().wait().check(t, 64,
		"--grace 1s does not fit", "(grace is set in "+w.filePath("config")+":8)")
	w.configured(config, "run", "--min-hold", "2m", "nightly", "true").launch().wait().check(t, 64,
		"--max-hold must be at least 2m0s", "(max-hold is set in "+w.filePath("config")+":12)")
	r = w.configured(config, "run", "nightly", "true")
	r.cmd.Env = w.configuredEnvironment("HOLDFAST_CONFIG=" + w.filePath("no-file"))
	r.launch().wait().check(t, 64, w.filePath("no-file")+": the file cannot be read: no such file")
}

// TestConfigurationErrors: what is wrong in a file is an error that names its line, and shows no value that may be a
// password.
func TestConfigurationErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"tll = 1m", "1: unknown key tll; did you mean ttl?"},
		{"\n# x\ncolour = red", "3: unknown key colour; known are store, owner, local-default, ttl"},
		{"wait = 1m", "1: wait is written in a section; that of all locks is [lock *]"},
		{"[lock a]\nstore = file:///x", "2: store is for all locks; write it above the first section"},
		{"[lock a]\ngrce = 1s", "2: unknown key grce; did you mean grace?"},
		{"ttl = 1m\nttl = 2m", "2: ttl is set twice"},
		{"ttl = 1", "1: ttl: write a duration with its unit"},
		{"ttl = 1ms", "1: ttl: write 1s to 24h"},
		{"ttl = 30s # the default", "1: ttl: this value cannot be used; a comment needs a line of its own"},
		{"[lock a]\nwait = never", "2: wait: give a duration"},
		{"[lock a]\nsignal = HANGUP", "2: signal: "},
		{"[lock a]\nmax-hold = 1ms", "2: max-hold: write 1s or more"},
		{"[lock a]\nmin-hold = -1s", "2: min-hold: write a duration"},
		{"owner =", "1: owner: give a text"},
		{"local-default = no", "1: local-default: write forbid or allow"},
		{"store =", "1: store: a URL is missing"},
		{`store = "redis://:p4ss@host"`, "1: store: a value is written without quotes"},
		{"redis://:p4ss@host?a=b", "1: this is not a key"},
		{"redis://:p4ss@host", `1: this line is neither "key = value" nor "[lock PATTERN]"`},
		{"[lock a", "1: a section ends with ]"},
		{"[lock]", "1: a section is [lock PATTERN]"},
		{"[locks a]", "1: a section is [lock PATTERN]"},
		{"[p4ss]", "1: a section is [lock PATTERN]"},
	} {
		_, err := parseConfig("FILE", c.text)
		var exit *exitError
		if !errors.As(err, &exit) || exit.code != 64 || !strings.HasPrefix(err.Error(), "FILE:"+c.want) ||
			strings.Contains(err.Error(), "p4ss") {
			t.Errorf("%q: want %q, got %v", c.text, c.want, err)
		}
	}
	lines, err := parseConfig("FILE", "\n  store=file:///a=b#c  \r\n[lock a [b] ]\nwait = forever\n[lock a]\nttl = 2s\n[lock a]\nttl = 3s")
	if err != nil || len(lines) != 4 || lines[0].value != "file:///a=b#c" || lines[1].pattern != "a [b]" ||
		lines[1].source != "FILE:4" || lines[3].value != "3s" {
		t.Errorf("%+v, %v", lines, err)
	}
	w := newWorkspace(t)
	w.configured("tll = 1m", "list").launch().wait().check(t, 64, w.filePath("config")+":1: unknown key tll",
		"help configuration")
	w.configured("[lock *]\nwait = 1", "run", "a", "true").launch().wait().check(t, 64, w.filePath("config")+":2: wait:")
	if got := w.runProgram("help", "configuration"); got.code != 0 || !strings.Contains(got.out, "local-default") {
		t.Error(got.description)
	}
}

// TestConfigurationOrder: a line counts before all lines above it, and the user's file before the machine's.
func TestConfigurationOrder(t *testing.T) {
	t.Parallel()
	machine, err1 := parseConfig("M", "store = file:///m\nowner = m\n[lock a]\nttl = 1s\nwait = 1s\n[lock *]\nwait = 2s\n[lock b]\nwait = 3s")
	user, err2 := parseConfig("U", "store = file:///u\nttl = 9s\n[lock x]\nsignal = INT")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(machine, user)
	if line, _ := all.find("store"); line.value != "file:///u" || line.source != "U:1" {
		t.Errorf("%+v", line)
	}
	if line, ok := all.find("owner"); !ok || line.source != "M:2" {
		t.Errorf("%+v", line)
	}
	got := all.findForLock("a")
	if got["wait"].value != "2s" || got["ttl"].value != "9s" || got["signal"].value != "" {
		t.Errorf("%+v", got)
	}
	if got := machine.findForLock("b"); got["wait"].value != "3s" || got["ttl"].value != "" {
		t.Errorf("%+v", got)
	}
	if _, ok := all.find("wait"); ok {
		t.Error("a line of a section is for all")
	}
}

// TestPatterns: in a section's pattern, * stands for any text and ? for one character, and nothing else is special.
func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern string
		yes, no []string
	}{
		{"a", []string{"a"}, []string{"", "b", "ab", "ba"}},
		{"*", []string{"", "a", "a/b\n", "ü"}, nil},
		{"a*", []string{"a", "ab", "a/b*"}, []string{"", "ba"}},
		{"*a*b", []string{"ab", "xaxb", "abab", "aab"}, []string{"ba", "abx"}},
		{"a?c", []string{"abc", "aüc", "a?c"}, []string{"ac", "abbc"}},
		{"**", []string{"", "x"}, nil},
		{"a[b]", []string{"a[b]"}, []string{"ab"}},
	} {
		for _, name := range c.yes {
			if !matchesPattern(c.pattern, name) {
				t.Errorf("%q does not match %q", c.pattern, name)
			}
		}
		for _, name := range c.no {
			if matchesPattern(c.pattern, name) {
				t.Errorf("%q matches %q", c.pattern, name)
			}
		}
	}
}

// TestConfigurationFiles: which files are read.
func TestConfigurationFiles(t *testing.T) {
	paths := func() (all []string) {
		for _, f := range configFiles() {
			all = append(all, f.path)
		}
		return all
	}
	check := func(want ...string) {
		t.Helper()
		if got := paths(); !slices.Equal(got, want) {
			t.Errorf("want %q, got %q", want, got)
		}
	}
	t.Setenv(configVariable, "")
	check()
	t.Setenv(configVariable, "x")
	check("x")
	_ = os.Unsetenv(configVariable) // until the end of the test
	t.Setenv("HOME", "/h")
	t.Setenv("XDG_CONFIG_HOME", "")
	check(machineConfig, "/h/.config/holdfast/config")
	t.Setenv("XDG_CONFIG_HOME", "relative")
	check(machineConfig, "/h/.config/holdfast/config")
	t.Setenv("XDG_CONFIG_HOME", "/x")
	check(machineConfig, "/x/holdfast/config")
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "")
	check(machineConfig)
	_ = os.Unsetenv("HOME") // a service of systemd: the user has the same file as in a shell
	if got := paths(); len(got) != 2 || !strings.HasSuffix(got[1], "/.config/holdfast/config") {
		t.Errorf("got %q", got)
	}
}

// TestConfigurationOwner: a file that somebody else could change is refused.
func TestConfigurationOwner(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode        os.FileMode
		owner, user int
		want        string
	}{
		{0o644, 0, 0, ""}, {0o600, 0, 0, ""}, {0o644, 0, 1000, ""}, {0o644, 1000, 1000, ""}, {0o664, 1000, 1000, ""},
		{0o644, 1000, 0, "belongs to user 1000"}, {0o644, 1000, 1001, "belongs to user 1000"},
		{0o666, 1000, 1000, "chmod o-w"}, {0o646, 0, 0, "chmod o-w"}, {0o664, 0, 0, "chmod g-w"},
		{os.ModeDir | 0o755, 0, 0, "not a regular file"}, {os.ModeNamedPipe | 0o644, 0, 0, "not a regular file"},
	} {
		err := checkConfigOwner(c.mode, c.owner, c.user)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	w := newWorkspace(t)
	r := w.configured("store = "+w.store, "list")
	if err := os.Chmod(w.filePath("config"), 0o646); err != nil {
		t.Fatal(err)
	}
	r.launch().wait().check(t, 64, w.filePath("config")+": others can write this file (mode 0646)")
	_ = os.Remove(w.filePath("config"))
	if err := unix.Mkfifo(w.filePath("config"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = w.newProgram("list")
	r.cmd.Env = w.configuredEnvironment("HOLDFAST_CONFIG=" + w.filePath("config"))
	r.launch().wait().check(t, 64, "not a regular file")
}

// TestConfigurationOfOtherUser: a user reads the files of root, and nobody's else. A home directory that is not the
// user's, and that the user cannot look into, has no file of the user.
func TestConfigurationOfOtherUser(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	const nobodyID, otherID = 65534, 65533
	run := func(env ...string) result {
		t.Helper()
		r := w.newProgram("list")
		r.cmd.Env = append(w.configuredEnvironment(), env...)
		w.runAsNobody(r)
		return r.launch().wait()
	}
	w.writeFile("config", "store = "+w.store+"nobody\n")
	path := "HOLDFAST_CONFIG=" + w.filePath("config")
	run(path).check(t, 64, "the file cannot be read: permission denied")
	_ = os.Chmod(w.filePath("config"), 0o644)
	run(path).check(t, 0)
	_ = os.Chown(w.filePath("config"), otherID, otherID)
	run(path).check(t, 64, fmt.Sprintf("belongs to user %d and not to root or to user %d", otherID, nobodyID))

	// HOME of root, which has a file, after su or setpriv.
	dir := w.filePath("home/.config/holdfast")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := func() *startedProgram {
		r := w.newProgram("list")
		env := slices.DeleteFunc(w.configuredEnvironment(), func(v string) bool { return strings.HasPrefix(v, configVariable) })
		r.cmd.Env = append(env, "HOME="+w.filePath("home"), "XDG_CONFIG_HOME=", "HOLDFAST_STORE="+w.store+"nobody")
		w.runAsNobody(r)
		return r.launch()
	}
	for _, mode := range []os.FileMode{0o755, 0o700} {
		_ = os.Chmod(w.filePath("home"), mode)
		list().wait().check(t, 0)
	}
	// The user's own is read, and must be readable.
	_ = os.Chown(w.filePath("home"), nobodyID, nobodyID)
	list().wait().check(t, 64, "home/.config/holdfast/config: the file cannot be read: permission denied")
}

// TestLocalDefaultForbidden: where the file forbids it, no job runs under a lock of the local default.
func TestLocalDefaultForbidden(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	config := "local-default = forbid\n"
	for _, args := range [][]string{{"run", "a", "touch", "ran"}, {"once", "a", "touch", "ran"}, {"list"}, {"stores"}} {
		r := w.configured(config, args...)
		if os.Geteuid() == 0 { // root's default would be the machine's
			w.runAsNobody(r)
			_ = os.Chmod(w.filePath("config"), 0o644)
		}
		r.cmd.Env = append(r.cmd.Env, "XDG_STATE_HOME="+w.dir)
		r.launch().wait().check(t, 64, "no store is named", "local-default = forbid in "+w.filePath("config")+":1",
			"HOLDFAST_STORE")
	}
	if _, err := os.Stat(w.filePath("ran")); err == nil {
		t.Error("the command ran")
	}
	w.configured(config+"store = "+w.store, "run", "a", "true").launch().wait().check(t, 0)
	w.configured(config, "run", "--store", w.store, "a", "true").launch().wait().check(t, 0)
	r := w.configured("local-default = forbid\n[lock a]\nttl = 2s", "version")
	r.launch().wait().check(t, 0)
	all := configuration{{key: "local-default", value: "forbid"}, {key: "local-default", value: "allow"}}
	if line, _ := all.find("local-default"); line.value != "allow" {
		t.Error("the user's file does not count before the machine's")
	}
}

// TestUnknownVariables: a mistyped HOLDFAST_STORE is an error, and not the local default.
func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for variable, want := range map[string]string{
		"HOLDFAST_STROE=redis://:p4ss@host": "unknown variable HOLDFAST_STROE in the environment; did you mean HOLDFAST_STORE?",
		"HOLDFAST_CONFG=":                   "did you mean HOLDFAST_CONFIG?",
		"HOLDFAST_COLOR=red":                "names that begin with HOLDFAST_ are reserved",
		"HOLDFAST_\x1b[31m=":                "unknown variable",
	} {
		for _, args := range [][]string{{"run", "a", "touch", "ran"}, {"list"}, {"--store", w.store, "list"}} {
			r := w.newProgram(args...)
			r.cmd.Env = w.testEnvironment(variable)
			got := r.launch().wait()
			if got.check(t, 64, want); strings.Contains(got.err, "p4ss") || strings.Contains(got.err, "\x1b") {
				t.Errorf("shows the value: %s", got.description)
			}
		}
	}
	if _, err := os.Stat(w.filePath("ran")); err == nil {
		t.Error("the command ran")
	}
	for _, known := range []string{
		"HOLDFAST_SERVICE_HOST", "HOLDFAST_SERVICE_PORT_HTTP", "HOLDFAST_PORT", "HOLDFAST_PORT_6379_TCP_ADDR",
		"HOLDFAST_REDIS_PORT_6379_TCP", "HOLDFAST_REDIS_SERVICE_PORT", "HOLDFAST", "NO_HOLDFAST_X", "HOLDFASTX",
		"HOLDFAST_BIN",
	} {
		if err := checkEnvironment([]string{known + "=x", "HOLDFAST_ID=1"}); err != nil {
			t.Error(err)
		}
	}
	for _, unknown := range []string{"HOLDFAST_SERVICE", "HOLDFAST_SERVICES_HOST", "HOLDFAST_PORTS", "HOLDFAST_STORE_"} {
		if checkEnvironment([]string{unknown + "=x"}) == nil {
			t.Errorf("%s is known", unknown)
		}
	}
	// What run and once set for their commands is known.
	w.runProgram("run", "a", program, "once", "k", program, "run", "b", "true").check(t, 0)
	w.runProgram("once", "--every", "1h", "k2", program, "list").check(t, 0)
}

// TestMessagesNameTheStore: messages about a lock or its store say which store was used, and why that one.
func TestMessagesNameTheStore(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	note := "(store file://" + w.filePath("store") + ", from HOLDFAST_STORE)"
	holder := w.startProgram("hold", "--ttl", "15s", "a").awaitOutput("\n")
	w.runProgram("run", "-n", "a", "true").check(t, 75, "a is held by ", note)
	w.runProgram("run", "-n", "--skip-ok", "a", "true").check(t, 0, note)
	w.runProgram("run", "--wait", "10ms", "a", "true").check(t, 75, note)
	w.runProgram("run", "--limit", "2", "a", "true").check(t, 64, "a is in use as a mutex", note)
	w.runProgram("run", "--store", w.store, "-n", "a", "true").check(t, 75, "(store file://"+w.filePath("store")+", from --store)")
	w.runProgram("break", "a").check(t, 0)
	holder.wait().check(t, 76, "a is lost: ", note)
	r, _ := w.startHolder("b", "--ttl", "15s")
	w.runProgram("break", "b").check(t, 0)
	r.wait().check(t, 76, "b is lost: an operator broke it", note)
	busy := w.startProgram("once", "key", "sh", "-c", "echo held; "+waitForFile("gate")).awaitOutput("held")
	w.runProgram("once", "key", "true").check(t, 75, "a run of key is in progress", note)
	w.writeFile("gate", "")
	busy.wait().check(t, 0)
	if got := w.runProgram("run", "a", "sh", "-c", "exit 3"); got.code != 3 || got.err != "" {
		t.Errorf("want no message; %s", got.description)
	}
	if got := w.runProgram("run", "-v", "a", "true"); !strings.Contains(got.err, note) {
		t.Errorf("want %q; %s", note, got.description)
	}
	waiting := w.startProgram("run", "--store", "redis://:p4ss@127.0.0.1:1", "--store-wait", "forever", "a", "true")
	waiting.awaitTrue("a message", func() bool { return strings.HasSuffix(waiting.readStderr(), "\n") })
	if got := waiting.readStderr(); !strings.Contains(got, "(store redis://127.0.0.1:1, from --store)") || strings.Contains(got, "p4ss") {
		t.Errorf("stderr is %q", got)
	}
	waiting.signal(unix.SIGTERM)
	waiting.wait()
	// The default.
	state := w.filePath("state")
	inDefault := func(args ...string) *startedProgram {
		r := w.newProgram(args...)
		r.cmd.Env = append(w.configuredEnvironment(), "XDG_STATE_HOME="+state)
		if os.Geteuid() == 0 { // root's would be the machine's
			w.runAsNobody(r)
		}
		return r.launch()
	}
	gone := inDefault("hold", "a").awaitOutput("\n")
	inDefault("run", "-n", "a", "true").wait().check(t, 75, "(store file://"+state+"/holdfast, the default)")
	if got := inDefault("stores").wait(); !strings.Contains(got.out, "nowhere: it is the default directory") ||
		!strings.Contains(got.out, "none: HOLDFAST_CONFIG is empty") {
		t.Error(got.description)
	}
	gone.signal(unix.SIGTERM)
	gone.wait().check(t, 0)
}

// TestStoreNames: no name of a store shows a password, nor what may be a part of one.
func TestStoreNames(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://cache:6379/2?password-file=/x": "redis://cache:6379/2",
		"redis://user:p4ss@cache":               "redis://cache",
		"redis://:p@p4ss@cache":                 "redis://cache",
		"redis://:p@p4#ss@cache":                "redis://...",
		"redis://:p@p4ss/x@cache":               "redis://...",
		"redis://:p@p4ss?x@cache":               "redis://...",
		"redis://:12/p4ss@cache":                "redis://...",
		"redis://:p4 ss@cache":                  "redis://...",
		"redis://:p4ss":                         "redis://...",
		"file:///home/a@b/x":                    "file:///home/a@b/x",
		"gcs://bucket/prefix":                   "gcs://bucket/prefix",
		"user:p4ss@cache":                       "",
		"p4ss":                                  "",
		"p4ss://x":                              "",
	} {
		if got := (storeChoice{url: url}).name(); got != want {
			t.Errorf("%s: got %q", url, got)
		}
	}
}

// TestHandleNamesItsStore: who lacks the store of a handle learns which one it is, and how to give it.
func TestHandleNamesItsStore(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	h := w.runProgram("acquire", "--ttl", "30s", "a")
	h.check(t, 0)
	r := w.newProgram("release", strings.TrimSpace(h.out))
	r.cmd.Env = w.testEnvironment("HOLDFAST_STORE=" + w.store + "2")
	r.launch().wait().check(t, 64, "the handle is for the store file:"+w.filePath("store"),
		"this is file:"+w.filePath("store2")+", from HOLDFAST_STORE", "give --store or HOLDFAST_STORE the URL that acquire had")
	w.runProgram("--store", "file:///dev/null", "release", strings.TrimSpace(h.out)).check(t, 69,
		"the handle is for the store file:"+w.filePath("store"), "(store file:///dev/null, from --store)")
}
