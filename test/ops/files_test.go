package ops

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/metrics"
	"go.yaml.in/yaml/v3"
)

const (
	rulesFile     = "../../ops/prometheus/holdfast.rules.yml"
	dashboardFile = "../../ops/grafana/holdfast.json"
)

// ruleFile is what the tests read of a file of rules.
type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

type rule struct {
	Alert       string            `yaml:"alert,omitempty"`
	Record      string            `yaml:"record,omitempty"`
	Expr        string            `yaml:"expr"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

// readAlerts returns the alert rules.
func readAlerts(t *testing.T) []rule {
	t.Helper()
	var file ruleFile
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var rules []rule
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	if len(rules) == 0 {
		t.Fatal("there are no rules")
	}
	return rules
}

// promtool runs promtool, which Debian's package prometheus has.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestRules: each alert fires when it should, with its texts, and none on a sound day.
func TestRules(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", rulesFile)
	promtool(t, "test", "rules", "../../ops/prometheus/holdfast.test.yml")
	text, err := os.ReadFile("../../ops/prometheus/holdfast.test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range readAlerts(t) {
		fires := regexp.MustCompile(`alertname: ` + r.Alert + `\n\s+eval_time: \S+\n\s+exp_alerts:\n\s+- exp_labels`)
		if !fires.Match(text) {
			t.Errorf("holdfast.test.yml does not let %s fire", r.Alert)
		}
	}
}

// TestFailoverOfManyProcesses: a failover, in which each of 50 processes fails to renew some of its 200 leases for a
// moment, and one of them all, raises no alert.
func TestFailoverOfManyProcesses(t *testing.T) {
	t.Parallel()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	type series struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	input := []series{
		{`holdfast_store_requests_total{job="pods",operation="renew",outcome="ok"}`, "0+60000x120"},
		{`holdfast_store_requests_total{job="pods",operation="renew",outcome="error"}`, "0x30 350x90"},
	}
	for i := range 50 {
		failed := 3
		if i == 0 {
			failed = 200
		}
		name := fmt.Sprintf(`holdfast_renewal_seconds_count{job="pods",instance="%d",outcome=`, i)
		input = append(input, series{name + `"failed"}`, fmt.Sprintf("0x30 %dx90", failed)},
			series{name + `"renewed"}`, "0+1200x120"})
	}
	type fields map[string]any
	noAlert := fields{"expr": `count(count_over_time(ALERTS{alertname=~"Holdfast.*"}[2h]))`, "eval_time": "2h",
		"exp_samples": []any{}}
	text, err := yaml.Marshal(fields{"rule_files": []string{rules}, "evaluation_interval": "1m", "tests": []fields{
		{"interval": "1m", "input_series": input, "promql_expr_test": []fields{noAlert}}}})
	if err != nil {
		t.Fatal(err)
	}
	promtoolTests(t, string(text))
}

// promtoolTests runs tests of rules by promtool.
func promtoolTests(t *testing.T, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "test.yml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", file)
}

// TestShownRules: the rules in ops/README.md, for the user's own file, are rules for Prometheus. That for a job that
// is overdue looks at the machine that has run the job last.
func TestShownRules(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../ops/README.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(readme)
	if shown == nil {
		t.Fatal("ops/README.md shows no rules")
	}
	rules := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(rules, shown[1], 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", rules)
	promtoolTests(t, "rule_files: ['"+rules+`']
evaluation_interval: 1h
tests:
  - interval: 1h
    input_series:
      - {series: 'holdfast_command_success_timestamp_seconds{name="nightly",instance="a"}', values: '0x24 86400x60'}
      - {series: 'holdfast_command_success_timestamp_seconds{name="nightly",instance="b"}', values: '0x90'}
    promql_expr_test:
      - {expr: 'count_over_time(ALERTS[50h])', eval_time: 50h, exp_samples: []}
    alert_rule_test:
      - alertname: NightlyJobOverdue
        eval_time: 51h
        exp_alerts:
          - exp_labels: {severity: critical}
            exp_annotations: {summary: 'nightly has not succeeded for 1d 3h 0m 0s'}
`)
}

// TestRunbooks: each alert has a runbook, which its annotation and the table of ops/README.md name, and there are no
// others.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../ops/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, r := range readAlerts(t) {
		name := r.Alert + ".md"
		want = append(want, name)
		if got := r.Annotations["runbook_url"]; got != "https://github.com/holdfast-go/holdfast/blob/main/ops/runbooks/"+name {
			t.Errorf("the runbook of %s is %q", r.Alert, got)
		}
		row := "| [" + r.Alert + "](runbooks/" + name + ") | " + r.Labels["severity"] + " |"
		if !strings.Contains(string(readme), row) {
			t.Errorf("ops/README.md has no row %q", row)
		}
		text, err := os.ReadFile("../../ops/runbooks/" + name)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, part := range []string{"# " + r.Alert + "\n", "**Meaning.**", "**Where to look**", "**What to do**"} {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s has no %q", name, part)
			}
		}
	}
	files, err := filepath.Glob("../../ops/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(want, filepath.Base(f)) {
			t.Errorf("%s belongs to no alert", f)
		}
	}
}

// dashboard is what the tests read of a dashboard.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct {
			Expr         string
			LegendFormat string
		}
	}
	Templating struct {
		List []struct {
			Name  string
			Query any
		}
	}
}

// readDashboard returns the expressions of all panels by title, and the names of the variables.
func readDashboard(t *testing.T) (expressions map[string][]string, variables []string) {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	expressions = map[string][]string{}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			expressions[p.Title] = append(expressions[p.Title], target.Expr)
			for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !regexp.MustCompile(`by \([^)]*\b` + label[1] + `\b`).MatchString(target.Expr) {
					t.Errorf("%s: the legend has the label %s, which %s does not keep", p.Title, label[1], target.Expr)
				}
			}
		}
	}
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	return expressions, variables
}

// TestDashboard: all expressions of the dashboard are valid, use only metrics and labels that exist, and show every
// metric.
func TestDashboard(t *testing.T) {
	t.Parallel()
	expressions, variables := readDashboard(t)
	used := map[string]bool{}
	var asRules []rule
	for title, list := range expressions {
		for _, e := range list {
			checkNames(t, title, e, used)
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(e, -1) {
				if v[1] != "__rate_interval" && !slices.Contains(variables, v[1]) {
					t.Errorf("%s uses the variable %s, which does not exist", title, v[1])
				}
			}
			plain := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$lock", ".*").Replace(e)
			asRules = append(asRules, rule{Record: "panel", Expr: plain, Labels: map[string]string{"n": newName(len(asRules))}})
		}
	}
	for _, m := range metrics.All() {
		if !used[m.Name] {
			t.Errorf("no panel shows %s", m.Name)
		}
	}
	// promtool parses the expressions as if they were rules.
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": asRules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "panels.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

func newName(i int) string { return string(rune('a'+i/26)) + string(rune('a'+i%26)) }

// TestRuleNames: the rules use only metrics and labels that exist.
func TestRuleNames(t *testing.T) {
	t.Parallel()
	for _, r := range readAlerts(t) {
		checkNames(t, r.Alert, r.Expr, map[string]bool{})
	}
}

// commandMetric returns the labels of a metric of the command, or nil if it has no metric of this name. Its own tests
// see to it that docs/metrics.md has them all.
func commandMetric(t *testing.T, name string) (labels []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile("\n\\| `" + name + "` \\| \\w+ \\| (.*?) \\|").FindSubmatch(text)
	if line == nil || !strings.HasPrefix(name, "holdfast_command_") {
		return nil
	}
	return strings.Split(strings.ReplaceAll(string(line[1]), "`", ""), ", ")
}

// checkNames checks that an expression has only metrics that exist, and for each of them only labels that it has. It
// notes the metrics in used.
func checkNames(t *testing.T, where, expr string, used map[string]bool) {
	t.Helper()
	known := map[string]*metrics.Metric{}
	for _, m := range metrics.All() {
		known[m.Name] = m
		if m.Type == metrics.Histogram {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[m.Name+suffix] = m
			}
		}
	}
	allowed := []string{"job", "instance", "le"}
	selectors := regexp.MustCompile(`\b(holdfast_\w+)(\{[^}]*\})?`).FindAllStringSubmatch(expr, -1)
	if len(selectors) == 0 {
		t.Errorf("%s uses no metric of Holdfast: %s", where, expr)
	}
	for _, s := range selectors {
		m := known[s[1]]
		if labels := commandMetric(t, s[1]); labels != nil {
			m = &metrics.Metric{Name: s[1], Labels: labels}
		}
		if m == nil {
			t.Errorf("%s uses %s, which does not exist", where, s[1])
			continue
		}
		used[m.Name] = true
		allowed = append(allowed, m.Labels...)
		for _, label := range regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`).FindAllStringSubmatch(s[2], -1) {
			if label[1] != "job" && label[1] != "instance" && !slices.Contains(m.Labels, label[1]) {
				t.Errorf("%s: %s has no label %s", where, s[1], label[1])
			}
		}
	}
	for _, group := range regexp.MustCompile(`\b(?:by|on|without|ignoring) \(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(group[1], ",") {
			if label = strings.TrimSpace(label); !slices.Contains(allowed, label) {
				t.Errorf("%s: no metric in it has the label %s: %s", where, label, expr)
			}
		}
	}
}
