package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// maxCreateTime is how long New waits for a new table to become active.
const maxCreateTime = time.Minute

// checkTable reads one item. That shows that the table can be used, and what the service's time is: without
// it, no claim could be judged and no expiry be set. It writes nothing, but makes the table if create is set
// and it does not exist.
func (t *tableClient) checkTable(ctx context.Context, create bool, expires string) error {
	if err := t.findTable(ctx, create, expires); err != nil {
		return err
	}
	if !t.clock.Known() {
		return fmt.Errorf("%w: the replies have no Date, or an Age that marks them as old; "+
			"a proxy on the way must not change them", driver.ErrUnsupported)
	}
	return nil
}

// findTable reads one item, and makes the table if create is set and it does not exist.
func (t *tableClient) findTable(ctx context.Context, create bool, expires string) error {
	err := t.probeTable(ctx)
	var refusal smithy.APIError
	if !errors.As(err, &refusal) {
		return err
	}
	switch {
	case create && refusal.ErrorCode() == "ResourceNotFoundException":
		if err := t.createTable(ctx, expires); err != nil {
			return err
		}
		return t.findTable(ctx, false, expires)
	case refusal.ErrorCode() == "ValidationException":
		return t.explainKeyMismatch(ctx, err)
	}
	return err
}

// probeTable reads an item that does not exist. To describe the table would tell more, but needs a permission that a
// user of locks otherwise does not need.
func (t *tableClient) probeTable(ctx context.Context) error {
	key := t.itemKey(reservedChar)
	if t.hasSortKey {
		key[sortKey] = numberValue(0)
	}
	_, err := sendRead(ctx, t, t.client.GetItem,
		&sdk.GetItemInput{TableName: &t.tableName, Key: key, ConsistentRead: new(true)})
	return err
}

// explainKeyMismatch says how the key of the table differs from the one that is needed.
func (t *tableClient) explainKeyMismatch(ctx context.Context, err error) error {
	needed, advice := fmt.Sprintf("HASH %s (S) alone", t.partitionKey), "name its key with partition-key=, or use another table"
	if t.hasSortKey {
		needed = fmt.Sprintf("HASH %s (S) and RANGE %s (N)", t.partitionKey, sortKey)
		advice = "a key of a table cannot be changed, so make another table, for example with create=true"
	}
	out, derr := sendRead(ctx, t, t.client.DescribeTable, &sdk.DescribeTableInput{TableName: &t.tableName})
	if derr != nil {
		return fmt.Errorf("%w; Holdfast needs the key %s: %s", err, needed, advice)
	}
	has := ""
	for _, k := range out.Table.KeySchema {
		for _, a := range out.Table.AttributeDefinitions {
			if *a.AttributeName == *k.AttributeName {
				has += fmt.Sprintf(" %s %s (%s)", k.KeyType, *a.AttributeName, a.AttributeType)
			}
		}
	}
	return fmt.Errorf("%w: the table %q has the key%s, but Holdfast needs %s: %s", driver.ErrInvalid, t.tableName, has,
		needed, advice)
}

// createTable makes the table, or finds that another client has just done so, and waits until it can be used.
func (t *tableClient) createTable(ctx context.Context, expires string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, maxCreateTime,
		fmt.Errorf("the new table %q is not active after %v", t.tableName, maxCreateTime))
	defer cancel()
	in := &sdk.CreateTableInput{
		TableName:   &t.tableName,
		BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: &t.partitionKey, AttributeType: types.ScalarAttributeTypeS}},
		KeySchema: []types.KeySchemaElement{{AttributeName: &t.partitionKey, KeyType: types.KeyTypeHash}},
	}
	if t.hasSortKey {
		in.AttributeDefinitions = append(in.AttributeDefinitions,
			types.AttributeDefinition{AttributeName: new(sortKey), AttributeType: types.ScalarAttributeTypeN})
		in.KeySchema = append(in.KeySchema,
			types.KeySchemaElement{AttributeName: new(sortKey), KeyType: types.KeyTypeRange})
	}
	_, err := callServer(ctx, t, t.client.CreateTable, in)
	if there := (*types.ResourceInUseException)(nil); err != nil && !errors.As(err, &there) {
		return err
	}
	// The client that has made the table turns its TTL on. If it dies before that, locks work without: their idle items
	// just stay.
	made := err == nil
	for {
		out, err := sendRead(ctx, t, t.client.DescribeTable, &sdk.DescribeTableInput{TableName: &t.tableName})
		if err == nil && out.Table.TableStatus == types.TableStatusActive {
			break
		}
		missing := (*types.ResourceNotFoundException)(nil) // a new table may be missing for a moment
		if driverutil.IsFinal(err) && !errors.As(err, &missing) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if !made || expires == "" {
		return nil
	}
	_, err = callServer(ctx, t, t.client.UpdateTimeToLive, &sdk.UpdateTimeToLiveInput{TableName: &t.tableName,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: &expires, Enabled: new(true)}})
	if refusal := (smithy.APIError)(nil); errors.As(err, &refusal) &&
		refusal.ErrorCode() == "UnknownOperationException" {
		return nil // an emulator without TTLs
	}
	return err
}
