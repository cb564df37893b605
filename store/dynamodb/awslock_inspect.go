package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Inspect is one read.
func (a *awslockStore) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	if err := driver.CheckName(name, a.info); err != nil {
		return driver.Lock{}, err
	}
	at, err := a.readLock(ctx, name)
	if err != nil {
		return driver.Lock{}, err
	}
	return a.toLock(name, &at), nil
}

// List scans the table.
func (a *awslockStore) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		in := &sdk.ScanInput{TableName: &a.tableName, ConsistentRead: new(true)}
		for first := true; first || len(in.ExclusiveStartKey) > 0; first = false {
			page, err := sendRead(ctx, a.tableClient, a.client.Scan, in)
			if err != nil {
				yield(driver.Lock{}, err)
				return
			}
			for _, it := range page.Items {
				name, at := stringOf(it[a.partitionKey]), readLockItem(it)
				if l := a.toLock(name, &at); strings.HasPrefix(name, prefix) && len(l.Holders) > 0 && !yield(l, nil) {
					return
				}
			}
			in.ExclusiveStartKey = page.LastEvaluatedKey
		}
	}
}

// NextChange reads the lock about once per second.
func (a *awslockStore) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	return driver.PollChange(ctx, seen, a.Inspect)
}

// Break marks a claim of ours for its holder, or, by force, releases the lock of any holder.
func (a *awslockStore) Break(ctx context.Context, name, ref string, b driver.Break) error {
	loop := a.newLoop(driver.MaxTTL)
	for {
		done, err := a.tryBreak(ctx, loop, name, ref, b.Mode)
		if done {
			return err
		}
		if errors.Is(err, errRefused) {
			err = loop.PauseAfterAnswer(ctx)
		} else {
			err = loop.PauseAfterFailure(ctx, err, false) // tryBreak has noted what was sent
		}
		if err != nil {
			return err
		}
	}
}

// tryBreak is one try. A claim that is gone after a request of unknown outcome was ended by that request. A requested
// release ends nothing.
func (a *awslockStore) tryBreak(
	ctx context.Context, loop *driverutil.RetryLoop, name, ref string, mode driver.BreakMode,
) (done bool, err error) {
	at, err := a.readLock(ctx, name)
	switch gone := at.isFree() || a.refOf(&at) != ref; {
	case err != nil:
		return false, err
	case gone && loop.Uncertain && mode != driver.BreakRequestRelease:
		return true, nil
	case gone:
		return true, fmt.Errorf("no such claim exists: %w", driver.ErrLost)
	case mode != driver.BreakForce && !at.isOurs:
		return true, fmt.Errorf("%w: a foreign holder cannot be notified; remove its claim by force", driver.ErrUnsupported)
	}
	u := conditionalUpdate{set: map[string]types.AttributeValue{}}
	switch mode {
	case driver.BreakGraceful:
		u.set[markAttribute] = textValue(markBroken + ":" + ref)
	case driver.BreakRequestRelease:
		u.set[markAttribute] = textValue(markReleaseRequested + ":" + ref)
	default: // a holder that still works finds another recordVersionNumber
		now := a.clock.TokenFloor()
		u.set[releasedAttribute], u.set[tokenAttribute] = textValue("1"), numberValue(max(now, at.token+1))
		u.set[rvnAttribute] = textValue(versionNumber{claimID: "broken", token: at.token}.makeUnique())
		u.remove = []string{nonAcquirableAttribute}
		if at.isOurs {
			u.set[endedAttribute] = at.addEndNote("broken", now)
		}
	}
	if at.rvn == "" {
		u.addCondition("NOT attribute_type(#rvn, :string)", ":string", textValue("S"))
	} else {
		u.addCondition("#rvn = :seen", ":seen", textValue(at.rvn))
	}
	if !at.released {
		u.addCondition("attribute_not_exists(isReleased)")
	}
	_, _, err = a.updateItem(ctx, name, u)
	err = noteWrite(loop, err)
	return err == nil, err
}

// ReadTokenFloor is one read, whose reply shows the service's clock. A token is that time, as each client estimates it.
func (a *awslockStore) ReadTokenFloor(ctx context.Context) (driver.TokenFloor, error) {
	if _, err := a.readLock(ctx, "holdfast"); err != nil {
		return driver.TokenFloor{}, err
	}
	early, _, _ := a.clock.Bounds()
	return driver.TokenFloor{Token: max(early-tokenGap.Microseconds(), 1), ByClock: true}, nil
}

// RaiseToken changes nothing: the item of a lock that is free has no room for a token in this layout.
func (a *awslockStore) RaiseToken(ctx context.Context, _ string, atLeast int64) error {
	return driverutil.CheckTokenFloor(ctx, a, atLeast)
}

// toLock shows an item as a lock. An expired holder is not shown: the next claim replaces it.
func (a *awslockStore) toLock(name string, l *lockItem) driver.Lock {
	lock := driver.Lock{Name: name, Token: l.token}
	if l.isFree() || l.rvn == "" && l.owner == "" && !l.nonAcquirable || a.isExpired(name, l) {
		return lock
	}
	lock.Kind, lock.Limit, lock.Holders, lock.Revision = driver.KindMutex, 1, []driver.ClaimInfo{a.claimInfo(l)}, l.rvn
	return lock
}

// claimInfo shows the holder of an item.
func (a *awslockStore) claimInfo(l *lockItem) driver.ClaimInfo {
	s := driver.ClaimInfo{Ref: a.refOf(l), Owner: l.owner, Meta: l.meta, Weight: 1, TTL: l.lease, Foreign: !l.isOurs}
	if _, late, _ := a.clock.Bounds(); l.expiresAt > 0 {
		s.Remaining = max(0, time.Duration(min(l.expiresAt-late, math.MaxInt64/2000))*time.Microsecond)
	}
	if l.isOurs {
		// Tokens are made from the service's clock.
		s.Token, s.Since = l.parsedRVN.token, time.UnixMicro(l.parsedRVN.token)
		s.Broken, s.ReleaseRequested = l.mark == markBroken, l.mark == markReleaseRequested
	}
	return s
}

// refOf identifies a holder: a claim of ours by its id, and a foreign one by its last recordVersionNumber.
func (a *awslockStore) refOf(l *lockItem) string {
	if l.isOurs {
		return l.parsedRVN.claimID
	}
	return "foreign." + l.rvn
}
