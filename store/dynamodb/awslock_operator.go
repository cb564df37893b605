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
)

// Inspect is one read.
func (a *awslock) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	if err := driver.CheckName(name, a.info); err != nil {
		return driver.Lock{}, err
	}
	at, err := a.look(ctx, name)
	if err != nil {
		return driver.Lock{}, err
	}
	return a.lock(name, &at), nil
}

// List scans the table.
func (a *awslock) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		in := &sdk.ScanInput{TableName: &a.name, ConsistentRead: new(true)}
		for first := true; first || len(in.ExclusiveStartKey) > 0; first = false {
			page, err := look(ctx, a.link, a.client.Scan, in)
			if err != nil {
				yield(driver.Lock{}, err)
				return
			}
			for _, it := range page.Items {
				name, at := stringOf(it[a.key]), readLockItem(it)
				if l := a.lock(name, &at); strings.HasPrefix(name, prefix) && len(l.Holders) > 0 && !yield(l, nil) {
					return
				}
			}
			in.ExclusiveStartKey = page.LastEvaluatedKey
		}
	}
}

// Break marks a claim of ours for its holder, or releases any.
func (a *awslock) Break(ctx context.Context, name, ref string, mode driver.BreakMode) error {
	for tries := 0; ; tries++ {
		at, err := a.look(ctx, name)
		switch {
		case err != nil:
			return err
		case at.free() || a.ref(&at) != ref:
			return fmt.Errorf("no such claim stands: %w", driver.ErrLost)
		case mode != driver.BreakForce && !at.ours:
			return fmt.Errorf("%w: a foreign holder cannot be told", driver.ErrUnsupported)
		}
		u := update{set: map[string]types.AttributeValue{}}
		switch mode {
		case driver.BreakGraceful:
			u.set[markAttribute] = text(markBroken + ":" + ref)
		case driver.BreakRequestRelease:
			u.set[markAttribute] = text(markAsked + ":" + ref)
		default: // a holder that is still there finds another recordVersionNumber
			now, _ := a.clock.Now()
			u.set[releasedAttribute], u.set[tokenAttribute] = text("1"), numeral(max(now, at.token+1))
			u.set[rvnAttribute] = text(rvn{id: "broken", token: at.token}.fresh())
			u.remove = []string{barredAttribute}
			if at.ours {
				u.set[endedAttribute] = at.noteEnd("broken", now)
			}
		}
		if at.rvn == "" {
			u.when("NOT attribute_type(#rvn, :string)", ":string", text("S"))
		} else {
			u.when("#rvn = :seen", ":seen", text(at.rvn))
		}
		if !at.released {
			u.when("attribute_not_exists(isReleased)")
		}
		if _, _, err := a.update(ctx, name, u); !errors.Is(err, errRefused) {
			return driver.Uncertain(err)
		}
		if err := a.pause(ctx, tries); err != nil {
			return driver.Uncertain(err)
		}
	}
}

func (a *awslock) lock(name string, l *lockItem) driver.Lock {
	lock := driver.Lock{Name: name, Token: l.token}
	if l.free() || l.rvn == "" && l.owner == "" && !l.barred || a.over(name, l) {
		return lock
	}
	lock.Kind, lock.Limit, lock.Holders, lock.Revision = driver.KindMutex, 1, []driver.ClaimInfo{a.standing(l)}, l.rvn
	return lock
}

func (a *awslock) standing(l *lockItem) driver.ClaimInfo {
	s := driver.ClaimInfo{Ref: a.ref(l), Owner: l.owner, Meta: l.note, Weight: 1, TTL: l.lease, Foreign: !l.ours}
	if _, late := a.clock.ClockBounds(); l.ends > 0 {
		s.Remaining = max(0, time.Duration(min(l.ends-late, math.MaxInt64/2000))*time.Microsecond)
	}
	if l.ours {
		s.Token, s.Since = l.rvnParts.token, time.UnixMicro(l.rvnParts.token) // which is made from the service's clock
		s.Broken, s.ReleaseRequested = l.mark == markBroken, l.mark == markAsked
	}
	return s
}

// ref names a holder: a claim of ours by its id, and another by what it wrote last.
func (a *awslock) ref(l *lockItem) string {
	if l.ours {
		return l.rvnParts.id
	}
	return "foreign." + l.rvn
}
