package driverutil

import "github.com/holdfast-go/holdfast/driver"

// RefuseStore returns an error with the text of err that also matches [driver.ErrDenied]. It is for a store that cannot
// be used, and where waiting does not help, for another reason than that it denies access: a full disk, for example, or
// a certificate for another name.
func RefuseStore(err error) error { return refusal{err} }

type refusal struct{ error }

func (r refusal) Is(target error) bool { return target == driver.ErrDenied }
func (r refusal) Unwrap() error        { return r.error }
