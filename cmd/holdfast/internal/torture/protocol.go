package torture

import "time"

// task is what a worker does. It is the first line of its standard input, and not an argument, because the URL may
// contain a password.
type task struct {
	Store   string        // URL
	Link    string        // address of the SOCKS link; empty: the worker connects by itself
	Marks   string        // the file of its marks
	Locks   []Lock        // it has one actor per lock
	Keys    []int64       // per lock, for ledgers: the first key to try
	TTL     time.Duration // of its claims
	Pause   time.Duration // mean time between two claims of an actor
	Long    int           // one hold in so many lasts for up to two TTLs
	Seed    uint64
	Owner   string
	BootFit bool // its boot clock may be shifted: not on the file store, whose clients share that clock
}

// order is a line from the command to a worker.
type order struct {
	Op    string        // "calm", "stop", "skew" or "reply"
	Lock  int           `json:",omitempty"` // reply: to which actor
	Wall  time.Duration `json:",omitempty"` // skew: how far the wall clock is ahead
	Boot  time.Duration `json:",omitempty"` // skew: how long the machine seems to have slept
	Rate  float64       `json:",omitempty"` // skew: how fast its clocks run; 0: as before
	Value int64         `json:",omitempty"` // reply to a read: the value that was read
	OK    bool          `json:",omitempty"` // reply to a write: the fenced resource has accepted it
}

// report is a line from a worker to the command. Times are nanoseconds of [now].
type report struct {
	Op     string // one of the constants below
	At     int64  `json:",omitempty"`
	Lock   int    `json:",omitempty"` // index
	Key    int64  `json:",omitempty"` // of a ledger
	ID     int64  `json:",omitempty"` // of the attempt, unique in the worker; of a write, of the attempt that was granted
	Token  int64  `json:",omitempty"`
	Weight int64  `json:",omitempty"`
	Value  int64  `json:",omitempty"` // of a write
	Last   int64  `json:",omitempty"` // ended: when the holder believed for the last time
	Called int64  `json:",omitempty"` // ended: when the release was called
	How    string `json:",omitempty"` // ended, failed: see the constants
	Cause  string `json:",omitempty"` // lost: the code of the cause
	Text   string `json:",omitempty"` // an error
	// renewals since the last beat: how many, and the longest
	Renewals int           `json:",omitempty"`
	Longest  time.Duration `json:",omitempty"`
}

const (
	opReady  = "ready"  // the store is open
	opFatal  = "fatal"  // the worker cannot go on; Text says why
	opCall   = "call"   // it is about to ask for a lock
	opHeld   = "held"   // it was granted the lock, and believes so since At
	opFailed = "failed" // it was not granted the lock
	opRead   = "read"   // it asks for the value of the resource; a reply follows
	opWrite  = "write"  // it writes to the resource; a reply follows
	opEnded  = "ended"  // it holds the lock no longer
	opServed = "served" // it has had its turn since the command has asked for calm
	opBeat   = "beat"   // it is alive
)

// How a hold ends.
const (
	howReleased   = "released"
	howSucceeded  = "succeeded" // a run of a ledger
	howFailed     = "failed"    // a run of a ledger whose worker said that it has failed
	howLost       = "lost"
	howUncertain  = "uncertain" // the store has not confirmed the release
	howUnreported = "silent"    // the lease was not valid any more, and its context did not end
	howKilled     = "killed"    // the process was killed
)
