package driverutil

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slowStore is a store that takes a millisecond for a request, whatever is in it.
type slowStore struct {
	mu   sync.Mutex
	sent [][]int
}

func (f *slowStore) batcher() *Batcher[int] {
	return &Batcher[int]{Concurrency: 2, MaxBatch: 3, MaxDelay: 10 * time.Millisecond,
		Send: func(batch []int, done func(error)) error {
			f.note(batch...)
			go func() {
				time.Sleep(time.Millisecond)
				done(nil)
			}()
			return nil
		}}
}

func (f *slowStore) note(r ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, slices.Clone(r))
}

func (f *slowStore) alone(r int) func() error {
	return func() error {
		f.note(r)
		time.Sleep(time.Millisecond)
		return nil
	}
}

// start makes requests one after the other, and returns a function that waits until all have been answered and returns
// their errors.
func start(ctx context.Context, l *Batcher[int], f *slowStore, canWait bool, rs ...int) func() []error {
	errs := make([]error, len(rs))
	var all sync.WaitGroup
	for i, r := range rs {
		all.Go(func() { errs[i] = l.Do(ctx, r, canWait, f.alone(r)) })
		synctest.Wait()
	}
	return func() []error { all.Wait(); synctest.Wait(); return errs }
}

func (f *slowStore) wants(t *testing.T, want ...[]int) {
	t.Helper()
	if !slices.EqualFunc(f.sent, want, slices.Equal) {
		t.Errorf("sent %v, want %v", f.sent, want)
	}
}

// TestTogether: as many as may be under way go alone at once; the rest gathers meanwhile, and goes together in its
// order.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f slowStore
		began := time.Now()
		end := start(t.Context(), f.batcher(), &f, false, 1, 2, 3, 4, 5, 6, 7)
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

// TestBarred: a request that conflicts with a batch is sent right behind it, without waiting for its answer, and so are
// those behind it.
func TestBarred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f slowStore
		l := f.batcher()
		l.Concurrency = 1
		l.Conflicts = func(batch []int, next int) bool { return slices.Contains(batch, next) }
		began := time.Now()
		start(t.Context(), l, &f, false, 1, 2, 2, 3, 2)()
		f.wants(t, []int{1}, []int{2, 3}, []int{2}, []int{2})
		if d := time.Since(began); d != 2*time.Millisecond {
			t.Errorf("took %v", d)
		}
	})
}

// TestBatchDelay: a request that can wait does so for others, until one comes that cannot, and for MaxDelay at most.
func TestBatchDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f slowStore
		l := f.batcher()
		l.Concurrency = 1
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

// TestGivenUp: a request that is given up in the queue is not sent, and one that is given up in flight delays no other.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f slowStore
		l := f.batcher()
		l.Concurrency = 1
		first := start(t.Context(), l, &f, false, 1, 2)
		ctx, cancel := context.WithCancel(t.Context())
		given := start(ctx, l, &f, false, 3)
		cancel()
		if errs := given(); !errors.Is(errs[0], context.Canceled) {
			t.Errorf("the request that was given up returned %v", errs)
		}
		first()
		f.wants(t, []int{1}, []int{2})
	})
}

// TestApart: the requests of a batch that was not accepted are sent alone; what could not be sent, or has an unknown
// outcome, is not sent again.
func TestApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault, broken := errors.New("fault"), errors.New("broken")
		var f slowStore
		l := f.batcher()
		l.Concurrency = 1
		tries := 0
		l.Send = func(batch []int, done func(error)) error {
			tries++
			switch tries {
			case 1:
				go done(ErrSendAlone)
			case 2:
				go done(fault)
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
