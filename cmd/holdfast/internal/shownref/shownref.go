// Package shownref makes what serve shows of the refs of claims.
package shownref

import (
	"crypto/sha256"
	"encoding/hex"
)

// Of is what serve shows in place of a claim's ref, and what a request names the claim by. On most stores the ref is
// the id of the claim, and anyone who knows that can make a handle that releases it. So those who may only see a claim
// must not learn its ref.
func Of(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return hex.EncodeToString(sum[:16])
}
