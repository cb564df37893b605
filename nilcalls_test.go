package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/memory"
)

// arguments are values with which a method could work, by their types. The zero value of another type is good enough.
var arguments = map[reflect.Type]reflect.Value{
	reflect.TypeFor[string]():             reflect.ValueOf("other"),
	reflect.TypeFor[int]():                reflect.ValueOf(1),
	reflect.TypeFor[int64]():              reflect.ValueOf(int64(1)),
	reflect.TypeFor[holdfast.Schedule]():  reflect.ValueOf(holdfast.Every(24 * 60 * 60e9)),
	reflect.TypeFor[holdfast.BreakMode](): reflect.ValueOf(holdfast.BreakForce),
}

// callWithNil calls a method with nil for the argument at index missing, and with good values for the others. It
// returns the error: the last result, or the first that a sequence yields.
func callWithNil(ctx context.Context, method reflect.Value, missing int) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	in := make([]reflect.Value, method.Type().NumIn())
	for i := range in {
		kind := method.Type().In(i)
		value, known := arguments[kind]
		switch {
		case i != missing && kind == reflect.TypeFor[context.Context]():
			in[i] = reflect.ValueOf(ctx)
		case i != missing && known:
			in[i] = value
		case i != missing && kind.Kind() == reflect.Func:
			in[i] = reflect.MakeFunc(kind, func([]reflect.Value) []reflect.Value { panic("the function was called") })
		default:
			in[i] = reflect.Zero(kind)
		}
	}
	call := method.Call
	if method.Type().IsVariadic() {
		call = method.CallSlice
	}
	out := call(in)
	last := out[len(out)-1]
	if last.Kind() == reflect.Func { // an iter.Seq2
		for _, e := range last.Seq2() {
			last = e
			break
		}
	}
	err, _ = last.Interface().(error)
	return err
}

// TestNilInEachMethod: every method that takes a context, a function or a schedule returns ErrInvalid if that is nil,
// and every method that returns an error does so on a nil client. None panics, and none has ended or changed
// anything.
func TestNilInEachMethod(t *testing.T) {
	t.Parallel()
	c := newMemoryClient(t, memory.New(nil), nil)
	run, err := c.Ledger("jobs", nil).Begin(t.Context(), "held", nil)
	if err != nil {
		t.Fatal(err)
	}
	lease, err := c.RWMutex("held", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	group, err := holdfast.LockAll(t.Context(), c.Mutex("a", nil), c.Mutex("b", nil))
	if err != nil {
		t.Fatal(err)
	}
	objects := func(c *holdfast.Client) []any {
		return []any{c, c.Mutex("m", nil), c.RWMutex("rw", nil), c.Semaphore("s", 2, nil), c.Election("e", nil),
			c.Ledger("jobs", nil)}
	}
	errs := map[string]error{}
	for _, object := range append(objects(c), lease, group, run) {
		methods := reflect.ValueOf(object)
		for i := range methods.NumMethod() {
			method := methods.Method(i)
			for n := range method.Type().NumIn() {
				switch kind := method.Type().In(n); {
				case kind == reflect.TypeFor[context.Context](), kind == reflect.TypeFor[holdfast.Schedule](),
					kind.Kind() == reflect.Func:
					errs[fmt.Sprintf("%T.%s, argument %d", object, methods.Type().Method(i).Name, n+1)] =
						callWithNil(t.Context(), method, n)
				}
			}
		}
	}
	for _, object := range objects(nil) {
		methods := reflect.ValueOf(object)
		for i := range methods.NumMethod() {
			out := methods.Method(i).Type()
			name := methods.Type().Method(i).Name
			if out.NumOut() > 0 && (out.Out(out.NumOut()-1) == reflect.TypeFor[error]() || out.Out(0).Kind() == reflect.Func) &&
				name != "Resign" { // a candidate that does not lead has nothing to resign from
				errs[fmt.Sprintf("%T.%s of a nil client", object, name)] = callWithNil(t.Context(), methods.Method(i), -1)
			}
		}
	}
	for _, what := range slices.Sorted(maps.Keys(errs)) {
		var typed *holdfast.Error
		if err := errs[what]; !errors.Is(err, holdfast.ErrInvalid) || !errors.As(err, &typed) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	if len(errs) < 80 {
		t.Errorf("only %d calls were made", len(errs))
	}
	if !run.Valid() || !lease.Valid() || !lease.Exclusive() || !group.Valid() || group.Context().Err() != nil {
		t.Error("a call that was refused has ended or changed something")
	}
	if err := errors.Join(run.Succeed(t.Context(), nil), lease.Release(), group.Release()); err != nil {
		t.Error(err)
	}
}

// TestSecondCalls: what ends something says so when it is called a second time, and does nothing else.
func TestSecondCalls(t *testing.T) {
	t.Parallel()
	m := memory.New(nil)
	c, closed := newMemoryClient(t, m, nil), newMemoryClient(t, m, nil)
	lock := func(name string) *holdfast.Lease {
		l, err := c.Mutex(name, nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	begin := func(key string) *holdfast.Run {
		r, err := c.Ledger("jobs", nil).Begin(t.Context(), key, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	group, err := holdfast.LockAll(t.Context(), c.Mutex("a", nil), c.Mutex("b", nil))
	if err != nil {
		t.Fatal(err)
	}
	handle, err := lock("handle").Detach()
	if err != nil {
		t.Fatal(err)
	}
	candidate := c.Election("e", nil)
	if _, err := candidate.Campaign(t.Context()); err != nil {
		t.Fatal(err)
	}
	released, detached, succeeded, failed := lock("released"), lock("detached"), begin("succeeded"), begin("failed")
	for _, call := range []struct {
		name string
		call func() error
		want error // of the second call
	}{
		{"Lease.Release", released.Release, holdfast.ErrReleased},
		{"Lease.Detach", func() error { _, err := detached.Detach(); return err }, holdfast.ErrReleased},
		{"LeaseGroup.Release", group.Release, holdfast.ErrReleased},
		{"Client.Release", func() error { return c.Release(t.Context(), handle) }, holdfast.ErrLost},
		{"Run.Succeed", func() error { return succeeded.Succeed(t.Context(), nil) }, holdfast.ErrReleased},
		{"Run.Fail", func() error { return failed.Fail(t.Context(), nil) }, holdfast.ErrReleased},
		{"Election.Resign", candidate.Resign, nil},
		{"Client.Close", closed.Close, nil},
	} {
		if err := call.call(); err != nil {
			t.Errorf("%s: %v", call.name, err)
		}
		if err := call.call(); !errors.Is(err, call.want) {
			t.Errorf("%s, called again: %v, want %v", call.name, err, call.want)
		}
	}
}
