package record

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
)

// maxConcurrentLoads is how many rows LoadRows loads at a time.
const maxConcurrentLoads = 16

// LoadRows is for the List of a table whose server lists names and not what is under them. It loads the rows of these
// names by load, up to 16 at the same time, and yields those that exist in the order of the names. A row has the name
// that load gives it, or if that is empty, the one of names. A row that cannot be loaded is yielded with its error. It
// returns false if the listing is to end: yield has returned false, or the last thing yielded was the end of ctx or of
// the table.
func LoadRows(
	ctx context.Context, names []string, load func(context.Context, string) (Row, error), yield func(Row, error) bool,
) bool {
	for some := range slices.Chunk(names, maxConcurrentLoads) {
		rows, errs := make([]Row, len(some)), make([]error, len(some))
		var loads sync.WaitGroup
		for i, name := range some {
			loads.Go(func() { rows[i], errs[i] = load(ctx, name) })
		}
		loads.Wait()
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
