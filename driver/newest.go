package driver

import "strings"

// A claim that is marked as newest-only gives up its wait as soon as another one that is marked has begun to wait
// behind it: see Store.Acquire. The mark is a part of the claim's id, and nothing else. So every store keeps it for
// as long as the claim exists, in all forms in which it has been stored, and clients that do not know the mark
// neither see it nor lose it when they write a lock's record again. No other client makes such an id: with random ids
// that would take 2^50 of them. The 16 characters that are left have 80 random bits. Rejected: a field next to the
// claim, which a client of the version before would remove from each record that it writes.
const newestMark = "newestonly"

// MarkNewestOnly returns the id of a claim that is newest-only, made of another one.
func MarkNewestOnly(id string) string { return id[:max(0, len(id)-len(newestMark))] + newestMark }

// IsNewestOnly reports whether a claim with that id is newest-only.
func IsNewestOnly(id string) bool { return strings.HasSuffix(id, newestMark) }
