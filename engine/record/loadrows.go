package record

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// maxConcurrentLoads is how many rows LoadRows loads at a time.
const maxConcurrentLoads = 16

// A load that fails is tried again up to maxLoadRetries times, after pauses that grow from at most firstLoadPause, each
// to at most twice the one before. One that failed only after slowLoad is not: the server does not answer.
const (
	maxLoadRetries = 4
	firstLoadPause = 100 * time.Millisecond
	slowLoad       = time.Second
)

// LoadRows is for the List of a table whose server lists names and not what is under them. It loads the rows of these
// names by load, up to 16 at the same time, and yields those that exist in the order of the names. A row has the name
// that load gives it, or if that is empty, the one of names.
//
// A load whose error is not final is tried again after a pause, up to four times: otherwise a list of thousands of
// loads would often lack a row, since some are refused as too many. If all of the loads that run at the same time fail,
// the server is away, and the loads after them are tried once. A row that cannot be loaded is yielded with its error.
//
// It returns false if the listing is to end: yield has returned false, or the last thing yielded was the end of ctx or
// of the table.
func LoadRows(
	ctx context.Context, names []string, load func(context.Context, string) (Row, error), yield func(Row, error) bool,
) bool {
	retries := maxLoadRetries
	for some := range slices.Chunk(names, maxConcurrentLoads) {
		rows, errs := make([]Row, len(some)), make([]error, len(some))
		var loads sync.WaitGroup
		for i, name := range some {
			loads.Go(func() { rows[i], errs[i] = loadPatiently(ctx, name, load, retries) })
		}
		loads.Wait()
		if !slices.Contains(errs, nil) {
			retries = 0
		}
		for i, row := range rows {
			switch {
			case errors.Is(errs[i], driver.ErrClosed), ctx.Err() != nil:
				yield(Row{}, errors.Join(errs[i], ctx.Err()))
				return false
			case errs[i] == nil && row.Version == "":
				continue
			}
			row.Name = cmp.Or(row.Name, some[i])
			if !yield(row, errs[i]) {
				return false
			}
		}
	}
	return true
}

// loadPatiently loads one row, and tries again that often.
func loadPatiently(
	ctx context.Context, name string, load func(context.Context, string) (Row, error), retries int,
) (Row, error) {
	for tries := 0; ; tries++ {
		start := time.Now()
		row, err := load(ctx, name)
		if err == nil || driverutil.IsFinal(err) || tries == retries || time.Since(start) > slowLoad {
			return row, err
		}
		pause := time.NewTimer(rand.N(firstLoadPause << tries))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return row, err
		}
	}
}
