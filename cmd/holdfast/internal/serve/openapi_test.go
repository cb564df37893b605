package serve

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/failure"
)

const specFile = "../../../../docs/openapi.yaml"

// specification is docs/openapi.yaml.
type specification struct {
	document map[string]any
	schemas  map[string]*jsonschema.Schema // of the answers, by METHOD PATH; of problems, by ""
}

// specify reads the file once.
var specify = sync.OnceValues(func() (*specification, error) {
	data, err := os.ReadFile(specFile)
	if err != nil {
		return nil, err
	}
	var raw any
	if err := yaml.Unmarshal(data, &raw); err != nil {
		return nil, err
	}
	data, err = json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(data)))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource("file:///openapi.json", document); err != nil {
		return nil, err
	}
	s := &specification{document: document.(map[string]any), schemas: map[string]*jsonschema.Schema{}}
	if s.schemas[""], err = c.Compile("file:///openapi.json#/components/schemas/Problem"); err != nil {
		return nil, err
	}
	for path, item := range s.document["paths"].(map[string]any) {
		for method, operation := range item.(map[string]any) {
			if method == "parameters" {
				continue
			}
			answer := operation.(map[string]any)["responses"].(map[string]any)["200"].(map[string]any)
			if ref, ok := answer["$ref"].(string); ok {
				name := ref[strings.LastIndexByte(ref, '/')+1:]
				answer = s.document["components"].(map[string]any)["responses"].(map[string]any)[name].(map[string]any)
			}
			for kind, content := range answer["content"].(map[string]any) {
				schema := content.(map[string]any)["schema"].(map[string]any)
				ref, ok := schema["$ref"].(string)
				if !ok || kind == "text/event-stream" {
					continue
				}
				compiled, err := c.Compile("file:///openapi.json" + ref)
				if err != nil {
					return nil, err
				}
				s.schemas[strings.ToUpper(method)+" "+path] = compiled
			}
		}
	}
	return s, nil
})

// schemaOf is the schema of the answers to a request.
func (s *specification) schemaOf(method, path string) *jsonschema.Schema {
	path, _, _ = strings.Cut(path, "?")
	for known, schema := range s.schemas {
		template, ok := strings.CutPrefix(known, method+" ")
		if !ok {
			continue
		}
		pattern := regexp.MustCompile(`\\\{[a-z]+\\\}`).ReplaceAllString(regexp.QuoteMeta(template), `[^/]*`)
		if regexp.MustCompile("^" + pattern + "$").MatchString(path) {
			return schema
		}
	}
	return nil
}

// checkAnswer checks an answer against the file.
func checkAnswer(t *testing.T, method, path string, response *http.Response, body []byte) {
	t.Helper()
	spec, err := specify()
	if err != nil {
		t.Fatal(err)
	}
	schema := spec.schemas[""]
	if response.StatusCode == http.StatusOK {
		schema = spec.schemaOf(method, path)
	} else if kind := response.Header.Get("Content-Type"); kind != "application/problem+json" {
		t.Errorf("%s %s: the type of a problem is %q", method, path, kind)
	}
	validate(t, schema, method+" "+path, body)
}

// checkLine checks a line of a stream.
func checkLine(t *testing.T, method, path string, line []byte) {
	t.Helper()
	spec, err := specify()
	if err != nil {
		t.Fatal(err)
	}
	validate(t, spec.schemaOf(method, path), path, line)
}

func validate(t *testing.T, schema *jsonschema.Schema, what string, data []byte) {
	t.Helper()
	if schema == nil {
		t.Errorf("%s is not in %s", what, specFile)
		return
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(data)))
	if err == nil {
		err = schema.Validate(value)
	}
	if err != nil {
		t.Errorf("%s: %v: %s", what, err, data)
	}
}

// TestSpecification: docs/openapi.yaml has the paths, the codes and the events of the server, and no others.
func TestSpecification(t *testing.T) {
	t.Parallel()
	spec, err := specify()
	if err != nil {
		t.Fatal(err)
	}
	var described, served []string
	for path, item := range spec.document["paths"].(map[string]any) {
		for method := range item.(map[string]any) {
			if method != "parameters" {
				described = append(described, strings.ToUpper(method)+" "+path)
			}
		}
	}
	for _, r := range (&Server{}).routes() {
		served = append(served, r.method+" "+r.path)
	}
	sameNames(t, "paths", described, served)

	schemas := spec.document["components"].(map[string]any)["schemas"].(map[string]any)
	var codesDescribed, codesKnown, eventsDescribed []string
	for _, c := range schemas["Code"].(map[string]any)["enum"].([]any) {
		codesDescribed = append(codesDescribed, c.(string))
	}
	for _, row := range ownCodes {
		codesKnown = append(codesKnown, string(row.code))
	}
	for _, row := range failure.Rows {
		if row.Reason == holdfast.FailureMissed {
			continue // a run of the server has no slot
		}
		if !slices.Contains(codesKnown, row.Problem) {
			codesKnown = append(codesKnown, row.Problem)
		}
	}
	sameNames(t, "codes", codesDescribed, codesKnown)
	sameNames(t, "constants of codes", constantsOf(t, "problem.go", "code"), codesKnown)
	for name, schema := range schemas {
		if strings.HasPrefix(name, "Event") {
			e := schema.(map[string]any)["properties"].(map[string]any)["event"].(map[string]any)["const"]
			eventsDescribed = append(eventsDescribed, e.(string))
		}
	}
	sameNames(t, "events", eventsDescribed, constantsOf(t, "stream.go", "event"))
}

// TestSameRecords: claims, locks, runs and findings have the same keys in docs/openapi.yaml as in
// docs/json-schema.json, and the same ones are always there. A run has its key besides, which the records of the
// command tell before.
func TestSameRecords(t *testing.T) {
	t.Parallel()
	spec, err := specify()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("../../../../docs/json-schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type object struct {
		Properties map[string]any
		Required   []string
	}
	var records struct {
		Defs map[string]object `json:"$defs"`
	}
	var api struct {
		Components struct{ Schemas map[string]object }
	}
	if err := json.Unmarshal(data, &records); err != nil {
		t.Fatal(err)
	}
	if data, err = json.Marshal(spec.document); err == nil {
		err = json.Unmarshal(data, &api)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, record := range map[string]string{"Claim": "claim", "Lock": "lock_state", "Run": "run_state",
		"Finding": "finding"} {
		here, there := api.Components.Schemas[name], records.Defs[record]
		if name == "Run" {
			there.Properties["key"], there.Required = nil, append(there.Required, "key")
		}
		if len(here.Properties) == 0 {
			t.Errorf("%s has no %s", specFile, name)
		}
		sameNames(t, "keys of "+name, slices.Collect(maps.Keys(here.Properties)),
			slices.Collect(maps.Keys(there.Properties)))
		sameNames(t, "required keys of "+name, here.Required, there.Required)
	}
}

// constantsOf are the values of the constants with a type in a file of this package.
func constantsOf(t *testing.T, file, kind string) (values []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if name, ok := spec.Type.(*ast.Ident); ok && name.Name == kind {
				value, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				values = append(values, value)
			}
		}
		return true
	})
	return values
}

func sameNames(t *testing.T, what string, a, b []string) {
	t.Helper()
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(a, b) {
		t.Errorf("the %s differ:\n%q\n%q", what, a, b)
	}
}
