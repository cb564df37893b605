package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

// schemaFile describes all JSON of this command.
const schemaFile = "../../../docs/json-schema.json"

// schemas are the schema of all records, under "", and that of each type. A type's own schema says better what is
// wrong.
var schemas = sync.OnceValues(func() (map[recordType]*jsonschema.Schema, error) {
	path, err := filepath.Abs(schemaFile)
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	all, err := c.Compile(path)
	if err != nil {
		return nil, err
	}
	found := map[recordType]*jsonschema.Schema{"": all}
	for _, of := range all.OneOf {
		name := recordType(of.Ref.Location[strings.LastIndexByte(of.Ref.Location, '/')+1:])
		found[name] = of.Ref
	}
	return found, nil
})

// checkRecord checks a line against the schema, and returns its type.
func checkRecord(t *testing.T, line string) recordType {
	t.Helper()
	known, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
	if err != nil {
		t.Errorf("%v: %s", err, line)
		return ""
	}
	record, _ := value.(map[string]any)
	name := recordType(fmt.Sprint(record["type"]))
	schema := known[name]
	if schema == nil {
		t.Errorf("there is no type %q: %s", name, line)
		return name
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%v: %s", err, line)
	} else if err := known[""].Validate(value); err != nil {
		t.Errorf("only as a %s: %v: %s", name, err, line)
	}
	return name
}

// checkPrintedRecords checks what the program has printed, if that is JSON.
func (r *startedProgram) checkPrintedRecords() {
	r.Helper()
	args := r.cmd.Args[1:]
	if len(args) == 0 || slices.Contains(args, "--help") || args[0] == "run" || args[0] == "once" ||
		args[0] != "acquire" && !slices.Contains(args, "--json") {
		return
	}
	for line := range wholeLines(r.readStdout()) {
		checkRecord(r.T, line)
	}
}

// TestPrintedRecords: each type of record in the schema is what some subcommand prints, and looks as the schema says.
func TestPrintedRecords(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	printed := map[recordType]bool{}
	note := func(text string) {
		for line := range wholeLines(text) {
			printed[checkRecord(t, line)] = true
		}
	}
	show := func(args ...string) string {
		t.Helper()
		r := w.runProgram(args...)
		if r.code != 0 || r.out == "" {
			t.Errorf("want a record; %s", r.description)
		}
		note(r.out)
		return r.out
	}
	holder, release := w.startHolder("a", "--note", "INC-123", "--events", "record")
	waiter := w.startProgram("run", "--fair", "--ttl", "5m", "a", "true").awaitSecondClient()
	w.awaitWaiters("a", 1)
	show("list", "--json")
	show("show", "--json", "a")
	show("show", "--json", "free")
	watcher := w.startProgram("watch", "--json", "a").awaitOutput("\n")
	note(watcher.readStdout())
	watcher.signal(unix.SIGTERM)
	show("token", "show", "--json", "a")
	show("token", "show", "--json", "free")
	show("token", "floor", "--json", "--at-least", "1", "a")
	show("token", "floor", "--json", "--at-least", "1", "--all")
	show("explain", "--json", "a")
	show("explain", "--json", "--min-hold", "1s", "--max-hold", "1m", "-n", "a")
	_, _ = w.startHolder("two", "--limit", "2")
	if text := show("explain", "--json", "--limit", "3", "two"); !strings.Contains(text, `"reason":"mismatch"`) {
		t.Errorf("another --limit is not refused: %s", text)
	}
	show("stores", "--json")
	show("stores", "--json", "--compare")
	show("stores", "--json", "--options", "file")
	show("version", "--json")
	doctor := w.runProgram("doctor", "--json")
	note(doctor.out)
	note(w.runProgram("torture", "--json", "--for", "1s", "--beside-others", "--workers", "2").out)
	show("request-release", "--json", "a")
	show("break", "--json", "a")
	release()
	holder.wait()
	waiter.wait().check(t, 0)
	w.readRecord(w.filePath("record"))
	_, _ = w.startHolder("b")
	show("break", "--json", "--force", "b")

	held := w.startProgram("hold", "--json", "--events", "held", "c").awaitOutput("\n")
	note(held.readStdout())
	held.signal(unix.SIGTERM)
	held.wait().check(t, 0)
	note(w.readFile(w.filePath("held")))
	handle := show("acquire", "--ttl", "10m", "d")
	w.runProgram("release", strings.TrimSpace(handle)).check(t, 0)

	w.runProgram("once", "--keep-output", "1k", "good", "echo", "result").check(t, 0)
	w.runProgram("once", "--fingerprint", "x", "--events", "failed", "bad", "false").check(t, 1)
	note(w.readFile(w.filePath("failed")))
	show("ledger", "--json")
	show("ledger", "show", "--json", "good")
	show("ledger", "show", "--json", "never")
	show("ledger", "retry", "--json", "bad")
	show("ledger", "forget", "--json", "bad")

	printed[recordServe], printed[recordAudit] = true, true // TestServe and TestServeAuditLog check them
	known, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	for name := range known {
		if name != "" && !printed[name] {
			t.Errorf("no subcommand has printed a %s", name)
		}
	}
}

// TestStoreSource: a record says where the URL of the store is from.
func TestStoreSource(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.writeFile("config", "# the store of this machine\nstore = "+w.store+"\n")
	line := w.filePath("config") + ":2"
	for _, c := range []struct {
		environment  []string
		flags        []string
		source, line string
	}{
		{[]string{"HOLDFAST_CONFIG=", "HOLDFAST_STORE=" + w.store}, nil, "environment", ""},
		{[]string{"HOLDFAST_CONFIG=" + w.filePath("config")}, nil, "file", line},
		{[]string{"HOLDFAST_CONFIG=" + w.filePath("config")}, []string{"--store", w.store}, "flag", ""},
	} {
		for _, args := range [][]string{{"show", "--json", "a"}, {"run", "--events", "record", "a", "true"}} {
			r := w.newProgram(append(slices.Clone(c.flags), args...)...)
			r.cmd.Env = append(w.configuredEnvironment(), c.environment...)
			got := r.launch().wait()
			got.check(t, 0)
			var record struct {
				Source string `json:"store_source"`
				Line   string `json:"store_source_line"`
			}
			text := got.out
			if args[0] == "run" {
				text = w.readFile(w.filePath("record"))
				text = text[strings.LastIndexByte(strings.TrimSpace(text), '\n')+1:]
			}
			err := json.Unmarshal([]byte(text), &record)
			if err != nil || record.Source != c.source || record.Line != c.line {
				t.Errorf("want %s %s: %v; %s", c.source, c.line, err, text)
			}
		}
	}
}

// TestSchemaIsStrict: what a record must not be is found: an unknown key, a time of another zone, a part of a
// millisecond, an unknown code.
func TestSchemaIsStrict(t *testing.T) {
	t.Parallel()
	known, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2006, 1, 2, 15, 4, 5, 0, time.UTC)
	base := func() map[string]any {
		return map[string]any{"type": "event", "time": shown.FormatTime(now), "host": "h", "user": "u", "version": "v",
			"event": "renewal_failing", "remaining_ms": 5, "message": "no route"}
	}
	validate := func(record map[string]any) error {
		data, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(data)))
		if err != nil {
			t.Fatal(err)
		}
		return known[""].Validate(value)
	}
	if err := validate(base()); err != nil {
		t.Fatal(err)
	}
	for key, bad := range map[string]any{
		"surprise": true, "type": "evnt", "time": "2006-01-02T15:04:05+02:00", "remaining_ms": 1.5,
		"event": "renewal failing", "user": nil, "holders": []any{map[string]any{}},
	} {
		record := base()
		record[key] = bad
		if validate(record) == nil {
			t.Errorf("%s: %v is accepted", key, bad)
		}
	}
	for _, key := range []string{"time", "host", "user", "version", "event", "remaining_ms"} {
		record := base()
		delete(record, key)
		if validate(record) == nil {
			t.Errorf("a record without %s is accepted", key)
		}
	}
}

// TestEverySubcommandHasJSON: --json is a switch of each subcommand that prints something, and nothing else anywhere.
func TestEverySubcommandHasJSON(t *testing.T) {
	t.Parallel()
	without := []string{ // they print nothing of their own, or, as acquire does, always JSON
		"run", "once", "acquire", "renew", "release", "man", "help", "completion", "run-details", "configuration",
		"token",
	}
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Hidden || slices.Contains([]string{"completion", "help"}, sub.Name()) {
				continue
			}
			flag := sub.Flags().Lookup("json")
			switch has := flag != nil; {
			case has == slices.Contains(without, sub.Name()):
				t.Errorf("%s: it has --json: %v", sub.CommandPath(), has)
			case has && flag.Value.Type() != "bool":
				t.Errorf("%s: --json is a %s", sub.CommandPath(), flag.Value.Type())
			}
			check(sub)
		}
	}
	check(newRoot())
	w := newWorkspace(t)
	for _, name := range []string{"run", "once"} {
		w.runProgram(name, "--json", "a", "true").check(t, 64, "--events FILE")
	}
}

// TestJSONPage: docs/json.md names each type of record, and each event, outcome, reason and cause. The records that it
// shows are as the schema says.
func TestJSONPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	for _, example := range examples {
		checkRecord(t, strings.ReplaceAll(example[1], "\n", " "))
	}
	if len(examples) == 0 {
		t.Error("docs/json.md shows no record")
	}
	data, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		OneOf []struct {
			Ref string `json:"$ref"`
		}
		Defs map[string]struct {
			Enum       []string
			Properties map[string]struct{ Enum []string }
		} `json:"$defs"`
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	words := slices.Concat(schema.Defs["reason"].Enum, schema.Defs["cause"].Enum,
		schema.Defs["event"].Properties["event"].Enum, schema.Defs["event"].Properties["outcome"].Enum)
	for _, of := range schema.OneOf {
		words = append(words, strings.TrimPrefix(of.Ref, "#/$defs/"))
	}
	if len(words) < 60 {
		t.Errorf("only %d codes are found in the schema", len(words))
	}
	for _, word := range words {
		if !strings.Contains(string(page), "`"+word+"`") {
			t.Errorf("docs/json.md does not name `%s`", word)
		}
	}
}
