// Package system has what the command needs from the operating system and systems have in different forms: signals,
// terminals, and locks of files. It imports little: see package guard.
package system

import "errors"

// ErrLocked is the error of TryLock if somebody else has the lock.
var ErrLocked = errors.New("it is locked")
