package serve

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// takeBody reads the body of a request that was admitted to its end: only then does net/http notice that a client
// closes its connection. From then on the client may be silent. Others remain under the server's time limit until the
// end, when net/http reads what they have sent.
func takeBody(w http.ResponseWriter, r *http.Request) error {
	data, err := io.ReadAll(r.Body)
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newProblem(codeInvalid, "the request did not arrive within %v", requestTimeout)
	case err != nil:
		return newProblem(codeInvalid, "the body cannot be read")
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return nil
}

// readBody reads the body of a request into v, strictly. No body leaves v as it is.
func readBody(r *http.Request, v any) error {
	data, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		return err
	case len(data) == 0:
		return nil
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return newProblem(codeMediaType, "send the body with the header Content-Type: application/json")
	}
	if v == nil {
		v = &struct{}{}
	}
	in := json.NewDecoder(strings.NewReader(string(data)))
	in.DisallowUnknownFields()
	if err := in.Decode(v); err != nil {
		return newProblem(codeInvalid, "%s", describeJSONError(err))
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return newProblem(codeInvalid, "the body has more than one JSON value")
	}
	return nil
}

// describeJSONError says what is wrong in the words of JSON, not of Go.
func describeJSONError(err error) string {
	var mistyped *json.UnmarshalTypeError
	if errors.As(err, &mistyped) {
		field := mistyped.Field[strings.LastIndexByte(mistyped.Field, '.')+1:] // without the name of a Go struct
		return fmt.Sprintf("%s must be %s, not %s", cmp.Or(field, "the body"), wantedJSON(field, mistyped.Type.Kind()),
			cmp.Or(givenJSON[mistyped.Value], mistyped.Value))
	}
	return "the body is no such JSON: " + strings.TrimPrefix(err.Error(), "json: ")
}

// wantedJSON says what a field must be, with an example.
func wantedJSON(field string, kind reflect.Kind) string {
	switch {
	case field == "also": // or one of its strings
		return `a list of strings, such as ["db", "cache"]`
	case strings.HasSuffix(field, "_ms"):
		return "a whole number of milliseconds, such as 5000"
	case kind == reflect.Int64:
		return "a whole number, such as 5"
	case kind == reflect.Bool:
		return "true or false"
	case kind == reflect.String:
		return `a string, such as "nightly"`
	}
	return `an object, such as {"ttl_ms": 5000}`
}

// givenJSON are the words for what a client has sent in place of it.
var givenJSON = map[string]string{"string": "a string", "number": "a number", "array": "a list", "object": "an object",
	"bool": "true or false"}

// nameOf is the name in the path. It is in the query if the path has "-" in its place.
func nameOf(r *http.Request, parameter string) string {
	name := r.PathValue(parameter)
	if query := r.URL.Query(); name == "-" && query.Has(parameter) {
		return query.Get(parameter)
	}
	return name
}

// maxMillis bounds all durations of requests, so that no sum of them overflows. It is about 30 years.
const maxMillis = 1_000_000_000_000

// milliseconds is a duration of a request.
func milliseconds(field string, value int64) (time.Duration, error) {
	if value < 0 || value > maxMillis {
		return 0, newProblem(codeInvalid, "%s must be 0 to %d, not %d", field, int64(maxMillis), value)
	}
	return time.Duration(value) * time.Millisecond, nil
}

// queryNumber is a number in the query of a request.
func queryNumber(r *http.Request, name string, usual, smallest, largest int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < smallest || n > largest {
		return 0, newProblem(codeInvalid, "%s must be %d to %d", name, smallest, largest)
	}
	return n, nil
}
