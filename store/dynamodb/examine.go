package dynamodb

import (
	"context"
	"fmt"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
)

// The findings, without the table and what was seen there (DynamoDB Developer Guide: "Global tables", "Throughput
// capacity", "Time to Live").
var (
	findingGlobalTable = driver.Finding{Code: "dynamodb-global-table", Severity: driver.SeverityCritical,
		Why: "the regions learn of each other's writes later: clients in two regions may both acquire a lock",
		Fix: "keep the locks in a table of one region"}
	findingCapacity = driver.Finding{Code: "dynamodb-capacity", Severity: driver.SeverityWarning,
		Why: "beyond it requests are refused, and renewals are late",
		Fix: "aws dynamodb update-table --table-name TABLE --billing-mode PAY_PER_REQUEST, or raise the write capacity"}
	findingTTL = driver.Finding{Code: "dynamodb-ttl", Severity: driver.SeverityWarning,
		Why: "the items of idle locks are never removed, and each listing reads and costs all of them"}
	findingTTLAttribute = driver.Finding{Code: "dynamodb-ttl-attribute", Severity: driver.SeverityCritical,
		Why: "the service removes items by an attribute that locks and their foreign clients use in another way, and so " +
			"locks that are held",
		Fix: "turn the table's TTL off"}
	findingTableStatus = driver.Finding{Code: "dynamodb-table-status", Severity: driver.SeverityCritical,
		Why: "it refuses requests, or soon will",
		Fix: "wait, or see what somebody is doing with the table"}
	findingUnseen = driver.Finding{Code: "dynamodb-unseen", Severity: driver.SeverityUnknown,
		Fix: "allow dynamodb:DescribeTable and dynamodb:DescribeTimeToLive on the table"}
	findingForeignWatch = driver.Finding{Code: "dynamodb-foreign-watch", Severity: driver.SeverityWarning,
		What: "foreign-watch is not set",
		Why: "a foreign holder counts as dead when a client has seen it unchanged for its lease: after one has died, " +
			"callers that only try (run -n) are refused forever, until a client waits for as long",
		Fix: "set foreign-watch to the longest lease for which they may watch it, too"}
)

// Examine looks at the settings of the table.
func (t *table) Examine(ctx context.Context) ([]driver.Finding, error) {
	return t.examineTable(ctx, t.ttlAttribute)
}

// Examine also says which callers may be refused forever.
func (a *awslockStore) Examine(ctx context.Context) ([]driver.Finding, error) {
	all, err := a.examineTable(ctx, "")
	if a.maxForeignWatch == 0 {
		all = append(all, findingForeignWatch)
	}
	return all, err
}

// Examine looks at the settings of the table.
func (s *ledgerStore) Examine(ctx context.Context) ([]driver.Finding, error) {
	return s.examineTable(ctx, "")
}

// minWriteCapacity is enough for a lock that changes hands a few times per second.
const minWriteCapacity = 10

// examineTable looks at the settings of a table whose idle items have that attribute, empty if they have none.
func (t *tableClient) examineTable(ctx context.Context, ttlAttribute string) (all []driver.Finding, err error) {
	add := func(f driver.Finding, format string, args ...any) {
		all = append(all, f.With(t.tableName, fmt.Sprintf(format, args...)))
	}
	out, err := sendRead(ctx, t, t.client.DescribeTable, &sdk.DescribeTableInput{TableName: &t.tableName})
	switch {
	case t.life.Err() != nil:
		return nil, driver.ErrClosed
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		add(findingUnseen, "the table cannot be described: %v", err)
	default:
		d := out.Table
		if n := len(d.Replicas); n > 0 && d.MultiRegionConsistency != types.MultiRegionConsistencyStrong {
			add(findingGlobalTable, "it is a global table, with replicas in %d regions", n)
		}
		switch d.TableStatus {
		case types.TableStatusActive, types.TableStatusUpdating:
		default:
			add(findingTableStatus, "its status is %s", d.TableStatus)
		}
		onDemand := d.BillingModeSummary != nil && d.BillingModeSummary.BillingMode == types.BillingModePayPerRequest
		if p := d.ProvisionedThroughput; !onDemand && p != nil && p.WriteCapacityUnits != nil && *p.WriteCapacityUnits > 0 &&
			*p.WriteCapacityUnits < minWriteCapacity {
			add(findingCapacity, "its write capacity is %d per second", *p.WriteCapacityUnits)
		}
	}
	ttl, err := sendRead(ctx, t, t.client.DescribeTimeToLive, &sdk.DescribeTimeToLiveInput{TableName: &t.tableName})
	if err != nil {
		add(findingUnseen, "its TTL cannot be seen: %v", err)
		return all, ctx.Err()
	}
	enabled, attribute := false, ""
	if d := ttl.TimeToLiveDescription; d != nil {
		enabled = d.TimeToLiveStatus == types.TimeToLiveStatusEnabled || d.TimeToLiveStatus == types.TimeToLiveStatusEnabling
		if d.AttributeName != nil {
			attribute = *d.AttributeName
		}
	}
	switch {
	case enabled && attribute != ttlAttribute:
		add(findingTTLAttribute, "its TTL is by the attribute %s", attribute)
	case !enabled && ttlAttribute != "":
		f := findingTTL
		f.Fix = fmt.Sprintf("aws dynamodb update-time-to-live --table-name %s --time-to-live-specification "+
			"Enabled=true,AttributeName=%s", t.tableName, ttlAttribute)
		all = append(all, f.With(t.tableName, "its TTL is off"))
	}
	return all, nil
}
