package redis

import (
	"context"
	"iter"

	"github.com/holdfast-go/holdfast/driver"
)

// List walks through all keys of all servers, and shows the locks that are held on a majority.
func (r *Redlock) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		seen := map[string]bool{}
		failed := 0
		for _, s := range r.servers {
			for name, err := range s.lockNames(ctx, prefix) {
				if err != nil {
					if failed++; failed > len(r.servers)-r.majority || ctx.Err() != nil || r.life.Err() != nil {
						yield(driver.Lock{}, err)
						return
					}
					break // the others know of all that a majority holds
				}
				if seen[name] {
					continue
				}
				seen[name] = true
				l, err := r.Inspect(ctx, name)
				if err != nil {
					l = driver.Lock{Name: name}
				} else if len(l.Holders) == 0 {
					continue
				}
				if !yield(l, err) {
					return
				}
			}
		}
	}
}
