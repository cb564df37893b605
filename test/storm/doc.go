// Package storm sets processes upon one lock, kills and stops them, and has a witness judge what they did.
//
// The witness is the guarded resource: it keeps a number and the largest token it has seen. A worker locks, reads the
// number, thinks, and writes the number plus one under its token. A write under an older token is refused; an accepted
// one that is not the number plus one means that two worked at a time.
package storm
