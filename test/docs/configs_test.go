package docs

import (
	"encoding/json"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestShownCode: pieces of Go in documents are formatted, and JSON is valid.
func TestShownCode(t *testing.T) {
	t.Parallel()
	for _, file := range documents(t) {
		for _, b := range documentBlocks(t, file) {
			where := fmt.Sprintf("%s:%d", documentName(t, file), b.line)
			switch b.language {
			case "go":
				formatted, err := format.Source([]byte(b.text))
				if err != nil {
					t.Errorf("%s: %v", where, err)
				} else if strings.TrimSpace(string(formatted)) != strings.TrimSpace(b.text) {
					t.Errorf("%s: gofmt would write\n%s", where, formatted)
				}
			case "json":
				decoder := json.NewDecoder(strings.NewReader(b.text))
				for decoder.More() {
					var value any
					if err := decoder.Decode(&value); err != nil {
						t.Errorf("%s: %v", where, err)
						break
					}
				}
			}
		}
	}
}

// yamlCommands checks a manifest, a Compose file or a pipeline, and returns the command lines of holdfast in it.
func yamlCommands(t *testing.T, file string, b codeBlock) (commands []string) {
	t.Helper()
	var root map[string]any
	if err := yaml.Unmarshal([]byte(b.text), &root); err != nil {
		t.Errorf("%s:%d: %v", file, b.line, err)
		return nil
	}
	fault := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s:%d: %s", file, b.line, fmt.Sprintf(format, args...))
	}
	pods := map[string]string{"CronJob": "spec.jobTemplate.spec.template", "Deployment": "spec.template"}
	kind, _ := root["kind"].(string)
	switch {
	case pods[kind] != "":
		checkPod(fault, kind, root, pods[kind])
	case root["services"] != nil:
		if !strings.Contains(fmt.Sprint(at(root, "services.worker.environment")), "HOLDFAST_STORE:") {
			fault("the worker has no HOLDFAST_STORE")
		}
		if at(root, "services.worker.stop_grace_period") == nil {
			fault("the worker has no stop_grace_period")
		}
	case root["jobs"] != nil:
		steps, _ := at(root, "jobs.deploy.steps").([]any)
		if len(steps) == 0 {
			fault("there are no steps")
			break
		}
		last, _ := steps[len(steps)-1].(map[string]any)
		first, _ := steps[0].(map[string]any)
		if run, _ := last["run"].(string); last["if"] != "always()" || !strings.Contains(run,
			fmt.Sprintf("steps.%v.outputs.handle", first["id"])) {
			fault("the last step does not always release the handle of the first one: %v", last)
		}
	case kind == "Role":
		if got := fmt.Sprint(root["rules"]); got != "[map[apiGroups:[coordination.k8s.io] resources:[leases] "+
			"verbs:[get create update watch list delete]]]" { // with which doctor finds nothing: TestExamine of store/kubernetes
			fault("the role has %s", got)
		}
	case at(root, "deploy.script") != nil:
	case root["groups"] != nil: // rules of Prometheus; the tests in test/ops check them
	default:
		fault("no test knows what this is for")
	}
	collectCommands(root, "", &commands)
	return commands
}

// checkPod checks what our recipes rely on in the template of a pod.
func checkPod(fault func(string, ...any), kind string, root map[string]any, template string) {
	if labels := at(root, template+".metadata.labels"); kind == "Deployment" &&
		fmt.Sprint(labels) != fmt.Sprint(at(root, "spec.selector.matchLabels")) {
		fault("the selector does not select the pods, whose labels are %v", labels)
	}
	policy := at(root, template+".spec.restartPolicy")
	if kind == "CronJob" && policy != "Never" && policy != "OnFailure" {
		fault("a job cannot have the restart policy %v", policy)
	}
	if seconds, _ := at(root, template+".spec.terminationGracePeriodSeconds").(int); seconds < 10 {
		fault("terminationGracePeriodSeconds is %d", seconds)
	}
	containers, _ := at(root, template+".spec.containers").([]any)
	if len(containers) == 0 {
		fault("the pod has no containers")
	}
	for _, c := range containers {
		container, _ := c.(map[string]any)
		words := fmt.Sprint(container["command"])
		if !strings.HasPrefix(words, "[holdfast ") || !strings.Contains(words, " -- ") || container["image"] == nil {
			fault("the container %v does not run a command by holdfast", container["name"])
		}
		env := fmt.Sprint(container["env"])
		if !strings.Contains(env, "name:HOLDFAST_STORE valueFrom:map[secretKeyRef:") {
			fault("the container %v has no HOLDFAST_STORE from a secret: %s", container["name"], env)
		}
	}
}

// at is the value under a path such as "spec.template", or nil.
func at(value any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = m[key]
	}
	return value
}

var substitution = regexp.MustCompile(`\$\((holdfast .*?)\)`)

// collectCommands finds the command lines of holdfast under the keys that have commands.
func collectCommands(value any, key string, commands *[]string) {
	switch v := value.(type) {
	case map[string]any:
		for k, inner := range v {
			collectCommands(inner, k, commands)
		}
	case []any:
		if key == "command" {
			var words []string
			for _, word := range v {
				words = append(words, fmt.Sprintf("'%v'", word))
			}
			if len(v) > 0 && v[0] == "holdfast" {
				*commands = append(*commands, strings.Join(words, " "))
			}
			return
		}
		for _, inner := range v {
			collectCommands(inner, key, commands)
		}
	case string:
		if key != "run" && key != "script" {
			return
		}
		if m := substitution.FindStringSubmatch(v); m != nil {
			v = m[1]
		}
		if strings.HasPrefix(v, "holdfast ") {
			*commands = append(*commands, v)
		}
	}
}

// unitKeys are the settings of systemd's units that the recipes use.
var unitKeys = map[string][]string{
	"Unit": {"Description", "Documentation", "Wants", "After"},
	"Service": {"Type", "Environment", "EnvironmentFile", "ExecStart", "Restart", "RestartSec", "KillMode",
		"TimeoutStopSec", "SuccessExitStatus", "RestartPreventExitStatus"},
	"Timer":   {"OnCalendar", "Persistent", "RandomizedDelaySec"},
	"Install": {"WantedBy"},
}

// unitCommands checks a unit file, by systemd-analyze too, and returns the command that it starts.
func unitCommands(t *testing.T, file string, b codeBlock) (commands []string) {
	t.Helper()
	section, isTimer := "", false
	for line := range strings.Lines(b.text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
			isTimer = isTimer || section == "Timer"
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || !slices.Contains(unitKeys[section], key) {
			t.Errorf("%s:%d: the section %s has no setting %s that this test knows", file, b.line, section, line)
		}
		if key == "ExecStart" {
			commands = append(commands, strings.TrimPrefix(value, "/usr/local/bin/"))
		}
	}
	if !isTimer && len(commands) != 1 {
		t.Errorf("%s:%d: the unit starts %d commands", file, b.line, len(commands))
	}
	dir := t.TempDir()
	unit := filepath.Join(dir, "example.service")
	if isTimer {
		other := "[Service]\nExecStart=/bin/true\n"
		if err := os.WriteFile(unit, []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
		unit = filepath.Join(dir, "example.timer")
	}
	text := strings.ReplaceAll(b.text, "/usr/local/bin/holdfast", holdfastProgram(t))
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("systemd-analyze", "verify", "--man=no", "--generators=no", "--recursive-errors=no", unit)
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "example.") || err != nil && len(out) == 0 {
		t.Errorf("%s:%d: %v: %s", file, b.line, err, out)
	}
	return commands
}

// TestUnitsOfServe: systemd accepts the service and the socket in ops/systemd.
func TestUnitsOfServe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"holdfast.service", "holdfast.socket"} {
		text := readDocument(t, filepath.Join(root, "ops", "systemd", name))
		replaced := strings.Replace(text, "\nExecStart=holdfast serve", "\nExecStart="+holdfastProgram(t)+" serve", 1)
		if strings.HasSuffix(name, ".service") && replaced == text {
			t.Errorf("%s does not leave it to systemd where holdfast is installed", name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(replaced), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("systemd-analyze", "verify", "--man=no", "--generators=no", filepath.Join(dir, "holdfast.service"),
		filepath.Join(dir, "holdfast.socket"))
	if out, err := cmd.CombinedOutput(); strings.Contains(string(out), "holdfast.") || err != nil && len(out) == 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// imageCommands checks a Dockerfile, and returns the command that its image runs, if that is holdfast.
func imageCommands(t *testing.T, file string, b codeBlock) (commands []string) {
	t.Helper()
	var words []string
	for line := range strings.Lines(b.text) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch instruction {
		case "FROM", "COPY", "RUN", "":
		case "ENTRYPOINT", "CMD":
			var args []string
			if err := json.Unmarshal([]byte(rest), &args); err != nil {
				t.Errorf("%s:%d: %s: %v", file, b.line, line, err)
			}
			for _, arg := range args {
				words = append(words, "'"+arg+"'")
			}
		default:
			t.Errorf("%s:%d: no test knows the instruction %s", file, b.line, instruction)
		}
	}
	if len(words) > 0 && words[0] == "'holdfast'" {
		commands = []string{strings.Join(words, " ")}
	}
	return commands
}
