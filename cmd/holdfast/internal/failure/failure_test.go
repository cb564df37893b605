package failure

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast"
)

// TestRows: each reason of a failure has one row, and the code of a problem is the reason, except where a server has
// another word for it.
func TestRows(t *testing.T) {
	t.Parallel()
	parsed, err := parser.ParseFile(token.NewFileSet(), "../../../../failurereason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	known := map[holdfast.FailureReason]bool{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "FailureReason" {
				reason, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				known[holdfast.FailureReason(reason)] = true
			}
		}
		return true
	})
	if len(known) < 17 {
		t.Fatalf("only %d reasons are found", len(known))
	}
	others := map[holdfast.FailureReason]string{"": "released", holdfast.FailureClosed: "shutting-down",
		holdfast.FailureCanceled: "store-error"}
	seen := map[holdfast.FailureReason]bool{}
	for _, row := range Rows {
		want := string(row.Reason)
		if other, ok := others[row.Reason]; ok {
			want = other
		}
		switch {
		case seen[row.Reason]:
			t.Errorf("%q has two rows", row.Reason)
		case row.Problem != want || row.Exit == 0 || row.Status < 400 || row.Title == "":
			t.Errorf("%q: %+v", row.Reason, row)
		case row.Reason != "" && !known[row.Reason]:
			t.Errorf("there is no reason %q", row.Reason)
		}
		seen[row.Reason] = true
	}
	for reason := range known {
		if !seen[reason] {
			t.Errorf("%q has no row", reason)
		}
	}
}

// TestOf: an error has the row of its reason, also one that says more than one thing; ErrReleased has one of its own.
func TestOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		exit int
		code string
	}{
		{&holdfast.HeldError{}, 75, "held"},
		{fmt.Errorf("%w: %w", holdfast.ErrUncertain, errors.New("no route")), 69, "uncertain"},
		{holdfast.ErrReleased, 69, "released"},
		{&holdfast.LossError{Cause: holdfast.LossGone}, 1, "lost"},
		{errors.Join(holdfast.ErrReleased, holdfast.ErrLost), 1, "lost"},
		{holdfast.ErrAttemptsUsed, 77, "attempts-used"},
		{holdfast.ErrMismatch, 64, "mismatch"},
		{holdfast.ErrSuperseded, 81, "superseded"},
		{errors.New("no route"), 69, "store-error"},
	} {
		if row := Of(fmt.Errorf("as wrapped: %w", c.err)); row.Exit != c.exit || row.Problem != c.code {
			t.Errorf("%v: %+v", c.err, row)
		}
	}
}
