package driverutil

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestRefuseStore: the error is final, and its text does not say that access is denied.
func TestRefuseStore(t *testing.T) {
	err := RefuseStore(fmt.Errorf("the disk is full: %w", fs.ErrExist))
	if !errors.Is(err, driver.ErrDenied) || !errors.Is(err, fs.ErrExist) || !IsFinal(err) ||
		errors.Is(err, driver.ErrInvalid) {
		t.Error("the error is not the one that was refused")
	}
	if got := Uncertain(err).Error(); got != "the disk is full: file already exists" {
		t.Errorf("got %q", got)
	}
}
