package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// dirClock is the clock of a store's directory, the same for all its clients. It is the kernel's boot clock, which
// nobody can set and which continues during suspend, plus an offset. The first client in each boot of the machine
// fixes the offset, so that the clock begins at the wall clock's time, but above the floor.
//
// The floor is a number on the disk. No token has ever exceeded it, nor has the clock at the time of any write. It is
// raised some seconds ahead and then synced, so that grants need no sync. If the power fails, the records on the disk
// may be missing, empty, torn or old. But the clock of the next boot begins above the floor, and so do its tokens.
//
// # Containers with a boot id of their own
//
// Some containers have their own id of the boot (LXC, systemd-nspawn), so a different id is no proof of a different
// boot. But a client that is alive was started in this boot. So if a client is alive under the id that the offset was
// fixed for, the offset is valid, and a new client adopts that id. A client that is just starting must not be
// overlooked in this check. Therefore each client first makes its liveness file and then reads the clock. And a
// client that is about to fix the clock again first writes down that it intends to, then checks for live clients, and
// fixes the clock only if nothing has been written since. A client that read the clock before the intent was written
// is seen by that check. A client that reads it later removes the intent.
//
// If no client is alive (a host and its containers may run one short command after the other), the wall clock
// distinguishes the boots: see isSameBoot. Without that, each change from one id to another would fix the clock again
// above the floor. The clock would jump forward by as much as the floor is ahead, and timed locks would end early.
type dirClock struct {
	versionedFile
	liveness      *livenessFile
	readBootClock func() time.Duration // the kernel's boot clock
	readWallClock func() time.Time
	syncParents   func() // puts the names above the store's directory on the disk

	bootID string
	offset int64 // microseconds; does not change after startClock
	floor  atomic.Int64

	raiseMu sync.Mutex
}

// clockState is the content of the clock's record.
type clockState struct {
	Boot   string `json:"boot"`          // id of the boot that the offset is for
	Offset int64  `json:"offset_micros"` // clock = boot clock + offset
	Floor  int64  `json:"floor_micros"`
	Wall   int64  `json:"wall_micros,omitempty"` // wall clock minus boot clock when the state was written
	Next   string `json:"next,omitempty"`        // id of the boot that a client intends to fix the clock for
}

// floorAhead is how far the floor is raised above what is needed, in microseconds. This costs one sync per 10 s of
// use. If the machine restarts within that time, or its wall clock is behind, the clock begins ahead by that much,
// and detached claims end that much too early.
const floorAhead = int64(10 * time.Second / time.Microsecond)

// maxWallDrift is how much the difference of wall clock and boot clock may change within one boot, in microseconds,
// if nobody sets the wall clock. The kernel moves both by the same steps, so this covers only the time between two
// readings.
const maxWallDrift = 1000

// minWallClock is a time before which only a wall clock without a battery can be. Such a clock begins at the same
// time in each boot, and so cannot distinguish them.
var minWallClock = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// readMicros is the clock's time in microseconds since 1970. It does no I/O.
func (c *dirClock) readMicros() int64 { return c.readBootClock().Microseconds() + c.offset }

// measureWallOffset returns how far the wall clock is ahead of the boot clock, in microseconds. It takes the best of
// a few readings, since this process may be stopped between reading the two clocks.
func (c *dirClock) measureWallOffset() int64 {
	var ahead int64
	// The wall clock was read somewhere between the two readings of the boot clock, so half their distance bounds the
	// error.
	for tightest, n := time.Duration(-1), 0; n < 3 && (tightest < 0 || tightest > 50*time.Microsecond); n++ {
		before, wall, after := c.readBootClock(), c.readWallClock(), c.readBootClock()
		if spread := after - before; tightest < 0 || spread < tightest {
			tightest, ahead = spread, wall.UnixMicro()-(before+spread/2).Microseconds()
		}
	}
	return ahead
}

// isSameBoot reports whether a state with another boot id was certainly written in this boot: the difference of wall
// clock and boot clock has not changed by a millisecond, and the clock that the state describes has not gone back.
// After a restart, the difference has changed by the time that the machine was up before. If somebody has set the
// wall clock since, the answer is no, and the clock is fixed again, as after a restart.
func (c *dirClock) isSameBoot(s clockState) bool {
	ahead := c.measureWallOffset()
	moved := ahead - s.Wall
	if s.Wall <= minWallClock || moved < -maxWallDrift || moved > maxWallDrift {
		return false
	}
	return c.readBootClock().Microseconds()+s.Offset >= s.Floor-floorAhead
}

// startClock makes this client's liveness file, and then reads the clock's state or fixes the clock for this boot.
// Before it fixes the clock, it calls prepareBoot, since this client may be the first of the boot; newClock says that
// there is no state. Several clients may do this at the same time.
func (c *dirClock) startClock(ctx context.Context, prepareBoot func(newClock bool) error) error {
	if err := c.liveness.announceClient(c.tmp, c.bootID); err != nil {
		return err
	}
	for {
		f, s, err := c.readState(ctx)
		if err != nil {
			return err
		}
		if f.isLive() && s.Boot != c.bootID {
			if alive, err := c.liveness.isAnyoneAlive(s.Boot); err != nil {
				return err
			} else if alive || c.isSameBoot(s) {
				if err := c.liveness.announceClient(c.tmp, s.Boot); err != nil {
					return err
				}
				c.bootID = s.Boot
				continue
			}
		}
		switch ours := f.isLive() && s.Boot == c.bootID; {
		case ours && s.Next == "":
			c.offset = s.Offset // the clock is not read before this
			if s.Floor < c.readMicros() {
				return nil // it is too low for any write, so the first one raises it
			}
			return c.adoptFloor(s.Floor)
		case ours:
			s.Next = ""
		case f.isLive() && s.Next != c.bootID:
			s.Next = c.bootID
		default:
			if err := prepareBoot(!f.isLive()); err != nil {
				return err
			}
			begin := max(c.readWallClock().UnixMicro(), s.Floor+1, 1)
			s = clockState{Boot: c.bootID, Offset: begin - c.readBootClock().Microseconds(), Floor: begin + floorAhead,
				Wall: c.measureWallOffset()}
			c.syncParents()
		}
		if err := c.writeState(ctx, f, s); err != nil && !errors.Is(err, record.ErrConflict) {
			return err
		}
	}
}

// adoptFloor syncs a floor that was read, and then uses it. The process that wrote it may have died before its own
// sync.
func (c *dirClock) adoptFloor(floor int64) error {
	d, err := c.openRecordDir()
	if err != nil {
		return err
	}
	defer c.closeHandle(d)
	if err := errors.Join(c.syncHandle(d), c.syncHandle(c.root)); err != nil {
		return describeError("sync the clock", err)
	}
	c.floor.Store(max(c.floor.Load(), floor))
	return nil
}

// readState loads and parses the clock's record.
func (c *dirClock) readState(ctx context.Context) (storedRecord, clockState, error) {
	f, err := c.loadRecord(ctx)
	if err != nil || !f.isLive() {
		return f, clockState{}, err
	}
	var s clockState
	if err := json.Unmarshal(f.data, &s); err != nil {
		return f, s, fmt.Errorf("%w: the clock of %s: %w", driver.ErrCorrupt, c.path, err)
	}
	return f, s, nil
}

// writeState replaces the state that was read as f. It returns record.ErrConflict if another client was faster.
func (c *dirClock) writeState(ctx context.Context, f storedRecord, s clockState) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	to := recordContent{name: c.lockName, data: data}
	if f.isLive() {
		_, err = c.swapVersion(ctx, f.version, to, true)
	} else {
		_, err = c.createRecord(ctx, to, true)
	}
	return err
}

// ensureFloor returns when the floor on the disk is at least token and at least the clock's present time. In most
// cases it already is.
func (c *dirClock) ensureFloor(ctx context.Context, token int64) error {
	// The clock counts as well as the token: the ends of claims are written by it, and after a power cut it must not
	// begin below a time that it has shown.
	need := max(token, c.readMicros())
	if need <= c.floor.Load() {
		return nil
	}
	c.raiseMu.Lock()
	defer c.raiseMu.Unlock()
	for need > c.floor.Load() {
		if err := c.replacedError(); err != nil {
			return err
		}
		f, s, err := c.readState(ctx)
		if err != nil {
			return err
		}
		// The offset is fixed once per boot. Another one means that two clients count by two clocks, and then this one
		// must not write.
		if !f.isLive() || s.Boot != c.bootID || s.Offset != c.offset {
			return fmt.Errorf("%w: the clock of %s was replaced: it was removed, or another machine uses the same directory, "+
				"which must never be", driver.ErrCorrupt, c.path)
		}
		if s.Floor < need {
			s.Floor, s.Wall = need+floorAhead, c.measureWallOffset()
			if err := c.writeState(ctx, f, s); errors.Is(err, record.ErrConflict) {
				continue
			} else if err != nil {
				return err
			}
			c.floor.Store(s.Floor) // writeState has synced it
			continue
		}
		if err := c.adoptFloor(s.Floor); err != nil {
			return err
		}
	}
	return nil
}
