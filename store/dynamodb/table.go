package dynamodb

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// table is a DynamoDB table as a record.Table: one item per record.
//
// A write puts the whole item on a condition, so that no attribute of a foreign client stays in it. Otherwise a client
// that recognises its locks by an attribute such as an owner would take our lock for its own.
//
// A row's version is the item's TTL attribute, a slash, and its holdfast_version. The latter is the TTL attribute that
// was written with it, a dot, and a random text. If the two differ, a foreign client has taken the lock since: it may
// update the TTL attribute and leave the attributes that it does not know as they are.
type table struct {
	record.Unsupported

	*tableClient
	prefix       string // before the names in keys
	ttlAttribute string // empty: no foreign client looks at the records
	// keepAttribute is the table's TTL attribute again, where ttlAttribute is empty. It says until when the item is
	// kept, and does not exist if that is forever.
	keepAttribute string
}

const (
	dataAttribute    = "holdfast"
	versionAttribute = "holdfast_version"

	// maxItem is how much of an item a record may use. DynamoDB limits an item to 400 KB, with its names and
	// foreign attributes. maxMeta keeps 256 holders and 64 waiters, each with its metadata, within that.
	maxItem = 396 << 10
	maxMeta = 512

	// idleAge is how far in the past the expired_at of an idle lock is, so that a foreign client whose clock is
	// late sees it free. It also makes the item fit for removal by the table's TTL, which comes when the service has
	// time, mostly within days (DynamoDB Developer Guide, "Time to Live"), and so decides nothing about locks.
	idleAge = 3600
)

// Info promises what the service promises: a confirmed write survives its faults.
func (t *table) Info() driver.Info {
	return driver.Info{
		Store:       t.displayURL,
		Clock:       t.clock.Clock,
		Tier:        driver.TierFenceSafe,
		ExpiryClock: driver.ExpiryClockStore,
		Survives:    driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenGap:    tokenGap, TokenRegression: tokenRegression,
		MaxMeta: maxMeta,
	}
}

func (t *table) TokenFloor() int64   { return t.clock.TokenFloor() }
func (t *table) Clock() record.Clock { return t.clock }

// ReadClock is one read: each reply tells the time.
func (t *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	return record.ReadClockByLoad(ctx, t)
}

// Traits: a scan for idle items would read, and pay for, the whole table. Its TTL removes them without charge.
func (t *table) Traits() record.Traits {
	return record.Traits{MaxRecord: maxItem, ExpiresIdle: true, Ledger: true}
}

// Keys names the item of a lock, for people.
func (t *table) Keys(name string) []string {
	return []string{fmt.Sprintf("%s %s=%s", t.displayURL, t.partitionKey, t.prefix+name)}
}

// Load is one consistent read. An eventually consistent one costs half as much, but may not show the last write
// (Developer Guide, "Read consistency"), and a swap for the version that it shows would then be refused.
func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	out, err := sendRead(ctx, t.tableClient, t.client.GetItem, &sdk.GetItemInput{
		TableName: &t.tableName, Key: t.itemKey(t.prefix + name), ConsistentRead: new(true),
	})
	if err != nil {
		return record.Row{}, err
	}
	return t.readRow(name, out.Item), nil
}

// readRow turns an item into a row.
func (t *table) readRow(name string, it item) record.Row {
	if len(it) == 0 {
		return record.Row{Name: name}
	}
	version, expires := stringOf(it[versionAttribute]), ""
	if n, ok := it[t.ttlAttribute].(*types.AttributeValueMemberN); ok {
		expires = n.Value
	}
	r := record.Row{Name: name, Version: expires + "/" + version}
	switch data := it[dataAttribute].(type) {
	case *types.AttributeValueMemberS:
		r.Data = []byte(data.Value)
	case *types.AttributeValueMemberB:
		r.Data = data.Value
	}
	if !strings.HasPrefix(version, expires+".") {
		r.Foreign = foreignEnd(expires)
	}
	return r
}

// foreignEnd is the last microsecond at which "expired_at < now" is false, by a clock of whole seconds. An item
// whose expired_at is not a number is never free to clients that use this condition.
func foreignEnd(expires string) int64 {
	seconds, err := strconv.ParseFloat(expires, 64)
	if err != nil || math.Abs(seconds) > math.MaxInt64/1e7 {
		return record.NoEnd
	}
	return int64(math.Floor(seconds)+1)*1e6 - 1
}

// Swap is one conditional put. If another item is there, it returns that, where the service sends it with the refusal:
// that costs no read, while a refused write is billed like one that succeeds.
func (t *table) Swap(ctx context.Context, r record.Row) (record.Row, error) {
	if len(r.Data) > maxItem {
		return record.Row{}, fmt.Errorf("%w: its record would grow to %d bytes, and an item of DynamoDB takes 400 KB",
			driver.ErrQueueFull, len(r.Data))
	}
	expires := ""
	it := t.itemKey(t.prefix + r.Name)
	it[dataAttribute] = &types.AttributeValueMemberB{Value: r.Data}
	if utf8.Valid(r.Data) { // as text, which people can read
		it[dataAttribute] = textValue(string(r.Data))
	}
	if t.ttlAttribute != "" {
		expires = t.expiryOf(r.ExpiresAt)
		it[t.ttlAttribute] = &types.AttributeValueMemberN{Value: expires}
	}
	if t.keepAttribute != "" && r.KeepUntil > 0 {
		it[t.keepAttribute] = &types.AttributeValueMemberN{Value: t.expiryOf(r.KeepUntil)}
	}
	version := expires + "." + rand.Text()
	it[versionAttribute] = textValue(version)
	names, values := map[string]string{}, item{}
	condition := t.isUnchangedCondition(r.Version, names, values)
	_, err := callServer(ctx, t.tableClient, t.client.PutItem, &sdk.PutItemInput{
		TableName: &t.tableName, Item: it, ConditionExpression: &condition,
		ExpressionAttributeNames: names, ExpressionAttributeValues: nilIfEmpty(values),
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if refused := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &refused) {
		return t.readRow(r.Name, refused.Item), record.ErrConflict
	}
	if err != nil {
		return record.Row{}, err
	}
	r.Version = expires + "/" + version
	return r, nil
}

// nilIfEmpty returns nil for no values: the service refuses an empty list.
func nilIfEmpty(values item) item {
	if len(values) == 0 {
		return nil
	}
	return values
}

// expiryOf is the expired_at of a record. It is rounded up, so that no foreign client takes the lock early.
func (t *table) expiryOf(ends int64) string {
	if ends == 0 {
		now := t.clock.TokenFloor()
		return strconv.FormatInt(now/1e6-idleAge, 10)
	}
	return strconv.FormatInt((ends+1e6-1)/1e6, 10)
}

// isUnchangedCondition is the condition that an item still has that version. It adds the names and values in it.
func (t *table) isUnchangedCondition(version string, names map[string]string, values item) string {
	if version == "" {
		names["#k"] = t.partitionKey
		return "attribute_not_exists(#k)"
	}
	expires, version, _ := strings.Cut(version, "/")
	names["#v"] = versionAttribute
	same := "attribute_not_exists(#v)"
	if version != "" {
		same, values[":was"] = "#v = :was", textValue(version)
	}
	if t.ttlAttribute == "" {
		return same
	}
	names["#e"] = t.ttlAttribute
	// The item that was read had no number there, so it must still have none. Two values that are not numbers are not
	// told apart: no client that keeps to the layout writes one.
	if expires == "" {
		values[":type"] = textValue("N")
		return same + " AND NOT attribute_type(#e, :type)"
	}
	values[":ends"] = &types.AttributeValueMemberN{Value: expires}
	return same + " AND #e = :ends"
}

// Delete is one conditional request, and a read if it is refused. A missing item fails the condition as well, so the
// refusal alone does not tell whether the item was removed before, as by an earlier attempt whose reply was lost.
func (t *table) Delete(ctx context.Context, r record.Row) error {
	names, values := map[string]string{}, item{}
	condition := t.isUnchangedCondition(cmp.Or(r.Version, "/"), names, values)
	_, err := callServer(ctx, t.tableClient, t.client.DeleteItem, &sdk.DeleteItemInput{
		TableName: &t.tableName, Key: t.itemKey(t.prefix + r.Name), ConditionExpression: &condition,
		ExpressionAttributeNames: names, ExpressionAttributeValues: nilIfEmpty(values),
	})
	if refused := (*types.ConditionalCheckFailedException)(nil); !errors.As(err, &refused) {
		return err
	}
	if now, err := t.Load(ctx, r.Name); err != nil || now.Version == "" {
		return err
	}
	return record.ErrConflict
}

// List scans the table: partition keys have no order in DynamoDB, so a prefix can only be filtered. The service filters
// after it has read, and all that it has read is paid for.
func (t *table) List(ctx context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		in := &sdk.ScanInput{TableName: &t.tableName, ConsistentRead: new(true)}
		if t.prefix+prefix != "" {
			in.FilterExpression = new("begins_with(#k, :p)")
			in.ExpressionAttributeNames = map[string]string{"#k": t.partitionKey}
			in.ExpressionAttributeValues = item{":p": textValue(t.prefix + prefix)}
		}
		for first := true; first || len(in.ExclusiveStartKey) > 0; first = false {
			page, err := sendRead(ctx, t.tableClient, t.client.Scan, in)
			if err != nil {
				yield(record.Row{}, err)
				return
			}
			for _, it := range page.Items {
				name, ok := strings.CutPrefix(stringOf(it[t.partitionKey]), t.prefix)
				r := t.readRow(name, it)
				if !ok || name == "" || strings.Contains(name, reservedChar) || r.Foreign == record.NoEnd {
					continue // not a lock, or an item that cannot be told from other data
				}
				if !yield(r, nil) {
					return
				}
			}
			in.ExclusiveStartKey = page.LastEvaluatedKey
		}
	}
}
