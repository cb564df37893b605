package dynamodb

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
)

// ledgerStore is the store of a table with LayoutLedger. It has a run ledger, and no locks.
type ledgerStore struct {
	driver.Unsupported

	*tableClient
	name       string // of the ledger
	startedAge time.Duration
}

func errNoLocks() error {
	return fmt.Errorf("%w: the layout %s keeps runs and no locks: use Client.Ledger or holdfast once, or another table for locks",
		driver.ErrUnsupported, LayoutLedger)
}

// OpenLedger opens the ledger, with the same connections.
func (s *ledgerStore) OpenLedger(context.Context) (driver.Ledger, error) {
	return &ledger{tableClient: s.share(), name: s.name, startedAge: s.startedAge, runs: map[string]rowRun{},
		unsure: map[string]unsureStart{}}, nil
}

// Info has no kinds: there are no locks.
func (s *ledgerStore) Info() driver.Info {
	info := ledgerInfo(s.tableClient, s.name)
	info.Kinds, info.Abilities = nil, driver.Abilities{Ledger: true}
	return info
}

func (s *ledgerStore) Acquire(_ context.Context, c driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, cmp.Or(c.Check(s.Info()), errNoLocks())
}

func (s *ledgerStore) Renew(_ context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	for i := range grants {
		done(i, driver.Renewal{Err: errNoLocks()})
	}
}

func (s *ledgerStore) Release(context.Context, driver.Claim, string) error { return errNoLocks() }

func (s *ledgerStore) Inspect(context.Context, string) (driver.Lock, error) {
	return driver.Lock{}, errNoLocks()
}

func (s *ledgerStore) List(context.Context, string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) { yield(driver.Lock{}, errNoLocks()) }
}

func (s *ledgerStore) Break(context.Context, string, string, driver.Break) error {
	return errNoLocks()
}

func (s *ledgerStore) NextChange(context.Context, driver.Lock) (driver.Lock, error) {
	return driver.Lock{}, errNoLocks()
}

// ledger keeps runs in the layout of the plain workers that are described at LayoutLedger.
//
// # Rows
//
// The rows of a key decide everything. A run begins with the row that its start makes, at the sequence after the newest
// row, and ends with the row after that one. Of all that want to write either row one succeeds, so a key has one run at
// a time, and a run has one end. What is ours in a row is in attributes that plain workers neither read nor write:
//
//   - holdfast_id: the claim that wrote the row.
//   - holdfast_before: the counter before our start. Only if it is 0 is the row ours. Otherwise a plain worker has
//     begun this run, and our start came second.
//   - holdfast_run: the run as JSON (see rowRun): in a start, its lease; in the row of its end, also the end.
//
// A start of ours changes a row only if no claim of ours is in it, so we never change each other's rows. It adds to the
// counter of a plain worker's row, as the layout wants it. A plain worker's start adds to the counter of our row, and
// changes its created_at; exec_status stays what it was. A row of an end has a counter, too. So a start that hits one
// does not get 1.
//
// A start row is never removed, not even when its key is forgotten, or its run is withdrawn. A plain worker may have
// read the rows before it a long time ago; if its start came to an empty place, it would begin a run next to ours.
//
// So the row that ends a withdrawn run says once more how the run before it has ended (rowRun.Withdrawn): from then on
// that is the last run again, for all who read the newest row. If there was no run before, the row hides both rows, as
// that of a forgotten key does. Plain workers see a run that has failed.
//
// # Heartbeats
//
// The lease of a run is first in its start row. Renewals are in an item of their own, the heartbeat, whose partition
// key is the key after controlPrefix. A plain worker asks for the rows of its event, so it never sees that
// item. It has, for the newest run that was renewed, its token, a beat, which rises with each renewal, and when it
// expires; and the token of the last run that was ended by somebody else (holdfast_ended).
//
// A run is abandoned in two steps. The first sets holdfast_ended, on the condition that the beat is the one that was
// judged, and from then on every renewal is refused. The second writes the row of its end, as failed. Between the two
// steps the newest row is still started, so nobody begins: if the client dies there, the next one takes the second
// step. Until that step, a report of the worker itself counts.
//
// # Order of requests
//
// Each request is sent once, and may arrive late. What that can do:
//
//   - Our start arrives after others have begun the run: it is refused, or adds to a counter.
//   - Our start arrives when nobody waits for it any more: to withdraw the claim, its client sends the same start again.
//     One of the two takes the place, and the run is then ended. If the client dies before that, the run exists, is not
//     renewed, and is abandoned after its TTL. A start whose reply was lost is found by its claim, and renewed before it
//     counts.
//   - A renewal arrives after a later one: its beat is not above, and it is refused. After the run was abandoned, or
//     the next one was renewed: refused.
//   - An end arrives after another end: refused, and read. So a report is repeated until the row is there, and the row
//     tells whose it is.
//   - A plain worker's start arrives late: the start row that it aims at exists, and it does not get 1.
//   - A plain worker's end arrives: it is at the place after its own start, where nobody else writes, because its run
//     is not ended by others. The exception is Options.StartedAge. Then its end replaces the one that we wrote, below
//     the newest row; or, if it looks for the newest row first, it lands after the start of the run that is in
//     progress, and ends that one. The worker of that run learns it by its next renewal.
type ledger struct {
	driver.Unsupported

	*tableClient
	name       string
	startedAge time.Duration

	mu     sync.Mutex
	runs   map[string]rowRun      // by claim id: the runs that this client has begun and that have not ended
	unsure map[string]unsureStart // by claim id: starts that may still take effect
}

// unsureStart is a start whose outcome is not known.
type unsureStart struct {
	sequence int64
	run      rowRun
}

// controlPrefix begins the partition keys of the items that are not rows. No key contains a NUL.
const controlPrefix = reservedChar + "holdfast" + reservedChar

// reservedInKeys is reserved in the keys of every ledger.
const reservedInKeys = "\x1f"

const sortKey = "sequence"

// ledgerInfo is what a ledger on DynamoDB promises. It is no record table, so its bounds are its own.
func ledgerInfo(t *tableClient, name string) driver.Info {
	return driver.Info{
		Store: t.displayURL, Engine: "script", Clock: t.clock.Clock,
		Tier: driver.TierFenceSafe, ExpiredBy: driver.ExpiredByClaimant, ExpiryClock: driver.ExpiryClockStore,
		Order: driver.OrderNone, Kinds: []driver.Kind{driver.KindMutex},
		Survives: driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenGap: tokenGap, TokenRegression: "when somebody removes all rows of a key within 3 s of its last run",
		MinTTL: driver.MinTTL, MaxTTL: driver.MaxTTL, MaxName: driver.MaxName, MaxMeta: driver.MaxMeta, MaxHolders: 1,
		MaxRunResult: driver.MaxRunResult,
	}
}

func (l *ledger) Info() driver.Info { return ledgerInfo(l.tableClient, l.name) }

// Explain names the partition of a key, for people.
func (l *ledger) Explain(c driver.Claim) driver.Plan {
	key, _ := l.partitionOf(c.Name)
	return driver.Plan{TTL: c.TTL, Keys: []string{fmt.Sprintf("%s %s=%s", l.displayURL, l.partitionKey, key)}}
}

// checkClaim reports what is wrong with a claim.
func (l *ledger) checkClaim(c driver.Claim) error {
	terms := c.Run
	c.Run = nil
	if err := c.Check(l.Info()); err != nil {
		return err
	}
	if terms == nil || c.Kind != driver.KindMutex || c.Limit != 1 || c.Fair || c.Detached {
		return fmt.Errorf("%w: a ledger takes only claims that begin a run", driver.ErrInvalid)
	}
	return terms.Check()
}

// partitionOf returns the partition key of a key. The table is one ledger, so the ledger's name is not in it: a plain
// worker uses the id of an event as it is.
func (l *ledger) partitionOf(name string) (string, error) {
	if err := driver.CheckName(name, l.Info()); err != nil {
		return "", err
	}
	key, ok := strings.CutPrefix(name, l.name+"/")
	switch {
	case !ok:
		return "", l.errOtherLedger(name)
	case key == "":
		return "", fmt.Errorf("%w: a key must not be empty", driver.ErrInvalid)
	case strings.Contains(key, reservedInKeys):
		return "", fmt.Errorf("%w: a key must not contain the control character U+001F", driver.ErrInvalid)
	}
	return key, nil
}

func (l *ledger) errOtherLedger(name string) error {
	other, _, _ := strings.Cut(name, "/")
	return fmt.Errorf("%w: the table is the ledger %q, and not %q: use the ledger of that name, or open the table "+
		"with ledger-name=%s", driver.ErrInvalid, l.name, other, other)
}

// nameOf is the opposite of partitionOf.
func (l *ledger) nameOf(key string) string { return l.name + "/" + key }

// rowKey is the key of a row, or of an item that is none.
func (l *ledger) rowKey(key string, sequence int64) item {
	return item{l.partitionKey: textValue(key), sortKey: numberValue(sequence)}
}

// ReadClock is one read, of an item that does not exist.
func (l *ledger) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	if err := l.probeTable(ctx); err != nil {
		return now, 0, err
	}
	early, late, _ := l.clock.Bounds()
	half := (late - early + 1) / 2
	return time.UnixMicro(early + half), time.Duration(half) * time.Microsecond, nil
}

// storeTime is the best estimate of the service's clock.
func (l *ledger) storeTime() time.Time {
	micros := l.clock.TokenFloor()
	return time.UnixMicro(micros)
}

// readItem is one consistent read.
func (l *ledger) readItem(ctx context.Context, key string, sequence int64) (item, error) {
	out, err := sendRead(ctx, l.tableClient, l.client.GetItem, &sdk.GetItemInput{
		TableName: &l.tableName, Key: l.rowKey(key, sequence), ConsistentRead: new(true)})
	if err != nil {
		return nil, err
	}
	return out.Item, nil
}

// query reads the items of one partition, page by page, the one with the highest sequence first. The first page has at
// most limit items; 0: as many as fit.
func (l *ledger) query(ctx context.Context, key string, limit int32) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		in := &sdk.QueryInput{TableName: &l.tableName, ConsistentRead: new(true), ScanIndexForward: new(false),
			KeyConditionExpression:    new("#k = :k"),
			ExpressionAttributeNames:  map[string]string{"#k": l.partitionKey},
			ExpressionAttributeValues: item{":k": textValue(key)}}
		if limit > 0 {
			in.Limit = &limit
		}
		for first := true; first || len(in.ExclusiveStartKey) > 0; first = false {
			page, err := sendRead(ctx, l.tableClient, l.client.Query, in)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, it := range page.Items {
				if !yield(it, nil) {
					return
				}
			}
			in.ExclusiveStartKey, in.Limit = page.LastEvaluatedKey, nil
		}
	}
}

// updateRow changes one item on a condition. Names and values are those that the expressions use. If the condition does
// not hold, the error is errRefused.
func (l *ledger) updateRow(ctx context.Context, key string, sequence int64, update, condition string,
	attributes map[string]string, values item) (item, error) {
	names := map[string]string{}
	for ref, attribute := range attributes {
		if strings.Contains(update+" "+condition, ref) {
			names[ref] = attribute
		}
	}
	in := &sdk.UpdateItemInput{
		TableName: &l.tableName, Key: l.rowKey(key, sequence), UpdateExpression: &update,
		ExpressionAttributeNames: names, ExpressionAttributeValues: values, ReturnValues: types.ReturnValueAllNew,
	}
	if condition != "" {
		in.ConditionExpression = &condition
	}
	out, err := callServer(ctx, l.tableClient, l.client.UpdateItem, in)
	if err != nil {
		return nil, refusedOr(err)
	}
	return out.Attributes, nil
}
