package gather

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// far is a store that takes a millisecond for a request, whatever is in it.
type far struct {
	mu   sync.Mutex
	sent [][]int
}

func (f *far) lane() *Lane[int] {
	return &Lane[int]{Abreast: 2, Together: 3, Linger: 10 * time.Millisecond, Send: func(together []int, landed func(error)) error {
		f.note(together...)
		go func() {
			time.Sleep(time.Millisecond)
			landed(nil)
		}()
		return nil
	}}
}

func (f *far) note(r ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, slices.Clone(r))
}

func (f *far) alone(r int) func() error {
	return func() error {
		f.note(r)
		time.Sleep(time.Millisecond)
		return nil
	}
}

// start has requests come one after the other, and gives a function that waits until they are all over, for the lane too, and
// gives their errors.
func start(ctx context.Context, l *Lane[int], f *far, patient bool, rs ...int) func() []error {
	errs := make([]error, len(rs))
	var all sync.WaitGroup
	for i, r := range rs {
		all.Go(func() { errs[i] = l.Do(ctx, r, patient, f.alone(r)) })
		synctest.Wait()
	}
	return func() []error { all.Wait(); synctest.Wait(); return errs }
}

func (f *far) wants(t *testing.T, want ...[]int) {
	t.Helper()
	if !slices.EqualFunc(f.sent, want, slices.Equal) {
		t.Errorf("sent %v, want %v", f.sent, want)
	}
}

// TestTogether: as many as may be under way go alone at once; the rest gathers meanwhile, and goes together in its order.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f far
		began := time.Now()
		end := start(t.Context(), f.lane(), &f, false, 1, 2, 3, 4, 5, 6, 7)
		for _, err := range end() {
			if err != nil {
				t.Error(err)
			}
		}
		f.wants(t, []int{1}, []int{2}, []int{3, 4, 5}, []int{6, 7})
		if d := time.Since(began); d != 2*time.Millisecond {
			t.Errorf("took %v", d)
		}
	})
}

// TestBarred: what cannot go with the others goes right behind them, and does not wait until they are back, nor does what comes
// behind it.
func TestBarred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f far
		l := f.lane()
		l.Abreast = 1
		l.Bars = func(together []int, next int) bool { return slices.Contains(together, next) }
		began := time.Now()
		start(t.Context(), l, &f, false, 1, 2, 2, 3, 2)()
		f.wants(t, []int{1}, []int{2, 3}, []int{2}, []int{2})
		if d := time.Since(began); d != 2*time.Millisecond {
			t.Errorf("took %v", d)
		}
	})
}

// TestPatience: a patient request waits for others; the first that is in a hurry takes it along, and nobody waits for longer
// than the lane lingers.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f far
		l := f.lane()
		l.Abreast = 1
		began := time.Now()
		first := start(t.Context(), l, &f, true, 1, 2)
		start(t.Context(), l, &f, false, 3)()
		first()
		if d := time.Since(began); d != time.Millisecond {
			t.Errorf("with one in a hurry it took %v", d)
		}
		start(t.Context(), l, &f, true, 4)()
		if d := time.Since(began); d != 12*time.Millisecond {
			t.Errorf("alone it took %v", d)
		}
		f.wants(t, []int{1, 2, 3}, []int{4})
	})
}

// TestGivenUp: who gives up in the queue is not sent, and who gives up on the way does not hold the others up.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f far
		l := f.lane()
		l.Abreast = 1
		first := start(t.Context(), l, &f, false, 1, 2)
		ctx, cancel := context.WithCancel(t.Context())
		given := start(ctx, l, &f, false, 3)
		cancel()
		if errs := given(); !errors.Is(errs[0], context.Canceled) {
			t.Errorf("who gave up was told %v", errs)
		}
		first()
		f.wants(t, []int{1}, []int{2})
	})
}

// TestApart: what was not done together is done alone; what could not be sent, or has an unknown outcome, is not done again.
func TestApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault, broken := errors.New("fault"), errors.New("broken")
		var f far
		l := f.lane()
		l.Abreast = 1
		tries := 0
		l.Send = func(together []int, landed func(error)) error {
			tries++
			switch tries {
			case 1:
				go landed(ErrApart)
			case 2:
				go landed(fault)
			case 3:
				return broken
			}
			return nil
		}
		errs := start(t.Context(), l, &f, false, 1, 2, 3)()
		errs = append(errs, start(t.Context(), l, &f, false, 4, 5)()...)
		errs = append(errs, start(t.Context(), l, &f, false, 6, 7)()...)
		if want := []error{nil, nil, nil, nil, fault, nil, broken}; !slices.Equal(errs, want) {
			t.Errorf("told %v, want %v", errs, want)
		}
		slices.SortFunc(f.sent, slices.Compare)
		f.wants(t, []int{1}, []int{2}, []int{3}, []int{4}, []int{6})
	})
}
