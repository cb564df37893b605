package driver

import "github.com/holdfast-go/holdfast/driver/clock"

// Clock is where all of Holdfast reads elapsed time: see [clock.Clock].
type Clock = clock.Clock

// Instant is a reading of a Clock. It means something only to clocks of the same machine and boot; see
// [clock.Clock.Since].
type Instant = clock.Instant

// SystemClock is the clock of this machine.
var SystemClock = clock.System
