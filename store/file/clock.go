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

// dirClock is the clock of a store's directory, the same for all its clients: the kernel's boot clock, which nobody can
// set and which goes on during suspend, plus an offset that the first client in each boot of the machine fixes so that
// the clock begins with the wall clock's time, but above the floor.
//
// The floor is a number on the disk that neither a token nor, at the time of any write, the clock has ever exceeded. It
// is raised some seconds ahead and then synced, so grants need no sync. If the power fails, the records on the disk may be
// missing, empty, torn or old; but the clock of the next boot begins above the floor, and so do its tokens.
//
// Some containers have an id of the boot of their own (LXC, systemd-nspawn), so another one is no proof of another boot. But
// whoever lives lives in this one: if there is a client under the id that the offset is for, the offset is good, and who comes
// goes under that id as well. Such a client must not be overlooked because it comes just now: each appears first and reads the
// clock second; and who is about to fix it anew writes that down, then looks for the others, and then fixes it if nothing has
// been written since. Whoever has read the clock before is seen by that look, and who reads it later strikes the intent out.
//
// Where no client is left (a host and its containers may run one short command after the other), the wall clock tells one
// boot from another: see sameBoot. Without that, each turn from one id to another would fix the clock anew above the floor, and so
// move it ahead of time by as much as the floor is ahead: timed locks would end early.
type dirClock struct {
	versionedFile
	liveness      *livenessFile
	readBootClock func() time.Duration // the kernel's boot clock
	readWallClock func() time.Time
	syncParents   func() // puts the names above the store's directory on the disk

	bootID string
	offset int64 // microseconds; fixed once open
	floor  atomic.Int64

	raiseMu sync.Mutex
}

// clockState is what is kept in the clock's cell.
type clockState struct {
	Boot   string `json:"boot"`          // id of the boot that the offset is for
	Offset int64  `json:"offset_micros"` // clock = boot clock + offset
	Floor  int64  `json:"floor_micros"`
	Wall   int64  `json:"wall_micros,omitempty"` // wall clock = boot clock + this, when the state was written
	Next   string `json:"next,omitempty"`        // id of the boot that somebody is about to fix it for
}

// floorAhead is how far the floor is raised above what is needed, in microseconds. It costs one sync per 10 s of use; and if the
// machine is up again within that time, or its wall clock is behind, the clock begins that much ahead of time, by which detached
// claims end early.
const floorAhead = int64(10 * time.Second / time.Microsecond)

// maxWallDrift is how far the wall clock and the boot clock may come apart within one boot, in microseconds, if nobody sets the
// wall clock. The kernel moves both by the same steps, so this is only what reading one after the other costs.
const maxWallDrift = 1000

// minWallClock is a time that no wall clock shows but one that has no battery, and begins at the same time with each boot.
var minWallClock = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

func (c *dirClock) readMicros() int64 { return c.readBootClock().Microseconds() + c.offset }

// measureWallOffset is how far the wall clock is ahead of the boot clock, in microseconds: the tightest of a few readings, since this
// process may be stopped between the two clocks.
func (c *dirClock) measureWallOffset() int64 {
	var ahead int64
	for tightest, n := time.Duration(-1), 0; n < 3 && (tightest < 0 || tightest > 50*time.Microsecond); n++ {
		before, wall, after := c.readBootClock(), c.readWallClock(), c.readBootClock()
		if spread := after - before; tightest < 0 || spread < tightest {
			tightest, ahead = spread, wall.UnixMicro()-(before+spread/2).Microseconds()
		}
	}
	return ahead
}

// isSameBoot reports whether a state with another id of the boot was surely written in this boot: the wall clock has kept its
// distance from the boot clock to the millisecond, and the clock that the state describes has not gone back. After a restart the distance
// differs by as long as the machine was up before. If somebody has set the wall clock since, the answer is no, and the clock is fixed anew,
// as after a restart.
func (c *dirClock) isSameBoot(s clockState) bool {
	ahead := c.measureWallOffset()
	moved := ahead - s.Wall
	return s.Wall > minWallClock && -maxWallDrift <= moved && moved <= maxWallDrift && c.readBootClock().Microseconds()+s.Offset >= s.Floor-floorAhead
}

// startClock makes this client present, and reads the clock's state, or makes it for this boot. first is called before that, when
// this client may be the first of the boot; several may do this at once.
func (c *dirClock) startClock(ctx context.Context, first func(fresh bool) error) error {
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
			c.offset = s.Offset // nobody reads the clock before
			return c.adoptFloor(s.Floor)
		case ours:
			s.Next = ""
		case f.isLive() && s.Next != c.bootID:
			s.Next = c.bootID
		default:
			if err := first(!f.isLive()); err != nil {
				return err
			}
			begin := max(c.readWallClock().UnixMicro(), s.Floor+1, 1)
			s = clockState{Boot: c.bootID, Offset: begin - c.readBootClock().Microseconds(), Floor: begin + floorAhead, Wall: c.measureWallOffset()}
			c.syncParents()
		}
		if err := c.writeState(ctx, f, s); err != nil && !errors.Is(err, record.ErrConflict) {
			return err
		}
	}
}

// adoptFloor takes a floor that was read for what it says. It may have been written by a process that died before it was synced,
// so it is synced once more before anybody relies on it.
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

// ensureFloor returns when the floor on the disk is at least token and the clock of now. In most cases it already is.
func (c *dirClock) ensureFloor(ctx context.Context, token int64) error {
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
		if !f.isLive() || s.Boot != c.bootID || s.Offset != c.offset {
			return fmt.Errorf("%w: the clock of %s was replaced: it was removed, or another machine uses the same directory, which must never be",
				driver.ErrCorrupt, c.path)
		}
		if s.Floor < need {
			s.Floor, s.Wall = need+floorAhead, c.measureWallOffset()
			if err := c.writeState(ctx, f, s); errors.Is(err, record.ErrConflict) {
				continue
			} else if err != nil {
				return err
			}
		}
		if err := c.adoptFloor(s.Floor); err != nil {
			return err
		}
	}
	return nil
}
