package driverutil

import (
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
)

// CheckLayout returns [driver.ErrInvalid] for a layout that a store does not have. An empty one stands for the default.
func CheckLayout[L ~string](layout L, known ...L) error {
	if layout == "" || slices.Contains(known, layout) {
		return nil
	}
	return fmt.Errorf("%w: unknown layout %q; use %s", driver.ErrInvalid, layout, JoinOr(known))
}

// RefuseForLayout returns [driver.ErrInvalid] for an option that the store's layout does not have.
func RefuseForLayout[L ~string](option string, layouts ...L) error {
	return fmt.Errorf("%w: %s is for the layout %s only", driver.ErrInvalid, option, JoinOr(layouts))
}

// OnlyUnfairMutexes returns [driver.ErrUnsupported] for a claim that the layout of another client has no place for:
// only for a mutex that keeps no order.
func OnlyUnfairMutexes[L ~string](layout L) error {
	return fmt.Errorf("%w: the layout %s supports only unfair mutexes", driver.ErrUnsupported, layout)
}

// RefuseSemaphoreWeight returns [driver.ErrUnsupported] for a change of the weight of a claim on a semaphore.
func RefuseSemaphoreWeight() error {
	return fmt.Errorf("%w: changing the weight of a claim on a semaphore", driver.ErrUnsupported)
}

// Mismatch returns [driver.ErrMismatch] for a claim on a lock that is in use as another kind, or with another limit.
func Mismatch(kind driver.Kind, limit int64, askedKind driver.Kind, askedLimit int64) error {
	return fmt.Errorf("%w: as %s with limit %d; this call asked for %s with limit %d", driver.ErrMismatch,
		kind, limit, askedKind, askedLimit)
}

// LackPermission returns [driver.ErrDenied] for credentials that are valid and may not do what is needed.
func LackPermission(permission, on string) error {
	return fmt.Errorf("%w: these credentials lack the permission %s on %s", driver.ErrDenied, permission, on)
}

// RefuseWithoutTLS returns [driver.ErrInvalid] for a server that cannot encrypt, where the store's URL asks for it.
func RefuseWithoutTLS() error {
	return fmt.Errorf("%w: the server does not support TLS: enable it there, or remove tls=true if you trust the network",
		driver.ErrInvalid)
}

// JoinOr makes "a, b or c" of a list.
func JoinOr[T ~string](list []T) string {
	var text string
	for i, item := range list {
		switch i {
		case 0:
		case len(list) - 1:
			text += " or "
		default:
			text += ", "
		}
		text += string(item)
	}
	return text
}
