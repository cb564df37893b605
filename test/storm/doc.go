// Package storm has processes contend for one lock, kills and stops them, and checks what they did by a witness.
//
// The witness is the resource that the lock guards: it keeps a number and the largest token that it has seen. A
// worker locks, reads the number, waits a little, and writes the number plus one with its token. The witness refuses
// a write with an older token. If it accepts a write of another value than the number plus one, two workers were
// inside at the same time.
package storm
