package shown

import (
	"crypto/sha256"
	"encoding/hex"
)

// Refs is how the refs of claims are shown.
type Refs func(ref string) string

// PlainRef shows a ref as it is: to who has the store itself.
func PlainRef(ref string) string { return ref }

// HiddenRef is what serve shows in place of a claim's ref, and what a request names the claim by. On most stores the
// ref is the id of the claim, and anyone who knows that can make a handle that releases it. So those who may only see
// a claim must not learn its ref.
func HiddenRef(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return hex.EncodeToString(sum[:16])
}
