// Package boot distinguishes the boots of a machine, and lets all its processes count the time since its last boot
// alike.
package boot
