package torture

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// Subject is what is put under faults: the locks that one kind of client makes in one store.
type Subject struct {
	Store string // for people, without secrets
	Tier  string // what it promises
	// NoTokens says that grants have no fencing tokens. The order of grants is then the one in which their holders
	// report them, and nothing can be fenced.
	NoTokens bool
	// List returns the names of the locks with a prefix that have claims.
	List func(ctx context.Context, prefix string) ([]string, error)
	// Forget removes what the store keeps of locks without claims; of a ledger, up to a key. It may be nil.
	Forget func(ctx context.Context, lock Lock, lastKey int64)
}

// NewSubject is a store that Holdfast uses.
func NewSubject(store driver.Store, client *holdfast.Client) Subject {
	info := client.Info()
	return Subject{
		Store: info.Store,
		Tier:  string(info.Tier),
		List: func(ctx context.Context, prefix string) (names []string, err error) {
			for lock, err := range client.List(ctx, prefix) {
				if err != nil {
					return nil, err
				}
				names = append(names, lock.Name)
			}
			return names, nil
		},
		Forget: func(ctx context.Context, lock Lock, lastKey int64) {
			if lock.Kind == Ledger {
				ledger := client.Ledger(lock.Name, nil)
				for key := int64(1); key <= lastKey; key++ {
					_ = ledger.Forget(ctx, fmt.Sprint(key)) // what is left is said in the documentation of torture
				}
			} else {
				_ = store.Forget(ctx, lock.Name)
			}
		},
	}
}

// check reports an error if there are other locks in the store.
func (s *Subject) check(ctx context.Context) error {
	names, err := s.List(ctx, "")
	switch {
	case err != nil:
		return fmt.Errorf("the locks of the store cannot be listed: %w", err)
	case len(names) > 0:
		return fmt.Errorf("%w, such as %q", ErrOthers, names[0])
	}
	return nil
}

// ErrOthers is returned if there are locks in the store.
var ErrOthers = errors.New("there are other locks in the store")
