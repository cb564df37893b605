package driver

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxOwner is the length of a claim's Owner in bytes.
const MaxOwner = 256

// Check reports as ErrInvalid what is wrong with the claim of a lock, on a store with these bounds. The client checks
// before it calls a store, and a store checks what it is called with.
func (c Claim) Check(info Info) error {
	if err := CheckName(c.Name, info); err != nil {
		return err
	}
	switch {
	case c.Limit < 1:
		return invalid("a limit must be 1 or more, not %d", c.Limit)
	case c.Limit > MaxLimit:
		return invalid("a limit is at most %d, not %d", int64(MaxLimit), c.Limit)
	case c.Weight < 1:
		return invalid("a weight must be 1 or more, not %d", c.Weight)
	case c.Run != nil:
		return invalid("a run needs a ledger")
	case c.Weight > c.Limit:
		return invalid("a weight of %d can never be granted within a limit of %d", c.Weight, c.Limit)
	}
	if err := checkTTL(c.TTL, info); err != nil {
		return err
	}
	if err := checkText("owner", c.Owner, MaxOwner); err != nil {
		return err
	}
	return checkText("meta", c.Meta, info.MaxMeta)
}

// CheckName reports as ErrInvalid why no lock can have that name.
func CheckName(name string, info Info) error {
	switch {
	case name == "":
		return invalid("a lock's name must not be empty")
	case len(name) > info.MaxName:
		return invalid("a lock's name is at most %d bytes, this one is %d; use a hash of it", info.MaxName, len(name))
	case !utf8.ValidString(name):
		return invalid("a lock's name must be UTF-8, %q is not; encode it, for example in base64", name)
	case strings.ContainsRune(name, 0):
		return invalid("a lock's name must not contain a NUL byte, %q does", name)
	}
	return nil
}

// checkTTL refuses a TTL that the store cannot keep. Stores count in whole milliseconds.
func checkTTL(ttl time.Duration, info Info) error {
	switch {
	case ttl < info.MinTTL || ttl > info.MaxTTL:
		return invalid("a TTL must be %v to %v on this store, not %v", info.MinTTL, info.MaxTTL, ttl)
	case ttl%time.Millisecond != 0:
		return invalid("a TTL must be whole milliseconds, %v is not", ttl)
	}
	return nil
}

// checkText refuses a text that some store could not keep as it is: one that is too long, is no UTF-8, or has a
// NUL byte.
func checkText(what, text string, most int) error {
	switch {
	case len(text) > most:
		return invalid("%s is at most %d bytes, this one is %d", what, most, len(text))
	case !utf8.ValidString(text):
		return invalid("%s must be UTF-8, %q is not", what, text)
	case strings.ContainsRune(text, 0):
		return invalid("%s must not contain a NUL byte", what)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
