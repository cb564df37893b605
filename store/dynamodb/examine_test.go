package dynamodb

import (
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

const (
	soundTable = `{"Table":{"TableStatus":"ACTIVE","BillingModeSummary":{"BillingMode":"PAY_PER_REQUEST"},
		"ProvisionedThroughput":{"WriteCapacityUnits":0}}}`
	soundTTL = `{"TimeToLiveDescription":{"TimeToLiveStatus":"ENABLED","AttributeName":"expired_at"}}`
)

// TestExamine: settings of a table that make locks less safe are found, and nothing is found in sound ones. The
// emulator has neither global tables nor TTLs, so the replies about these are those of the service.
func TestExamine(t *testing.T) {
	t.Parallel()
	server := sharedServer(t)
	name := newTableName()
	p := newProxy(t, server.Direct)
	s := mustOpen(t, urlOf(name, p.Endpoint, ""))
	storetest.ExpectFindings(t, "the emulator, whose tables have no TTL", s, "dynamodb-ttl")
	for what, c := range map[string]struct {
		table, ttl string
		codes      []string
	}{
		"a sound table": {soundTable, soundTTL, nil},
		"a global table": {`{"Table":{"TableStatus":"ACTIVE","Replicas":[{"RegionName":"eu-west-1"}]}}`, soundTTL,
			[]string{"dynamodb-global-table"}},
		"a global table with strong consistency": {`{"Table":{"TableStatus":"ACTIVE","MultiRegionConsistency":"STRONG",` +
			`"Replicas":[{"RegionName":"eu-west-1"}]}}`, soundTTL, nil},
		"a table that is being deleted": {`{"Table":{"TableStatus":"DELETING"}}`, soundTTL, []string{"dynamodb-table-status"}},
		"a TTL that is being turned off": {soundTable, `{"TimeToLiveDescription":{"TimeToLiveStatus":"DISABLING"}}`,
			[]string{"dynamodb-ttl"}},
		"a TTL by another attribute": {soundTable,
			`{"TimeToLiveDescription":{"TimeToLiveStatus":"ENABLED","AttributeName":"holdfast_version"}}`,
			[]string{"dynamodb-ttl-attribute"}},
	} {
		p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
			switch r.Operation {
			case "DescribeTable":
				return dynamodbtest.Fate{Status: 200, Reply: c.table}
			case "DescribeTimeToLive":
				return dynamodbtest.Fate{Status: 200, Reply: c.ttl}
			}
			return dynamodbtest.Fate{}
		})
		storetest.ExpectFindings(t, what, s, c.codes...)
	}
	p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
		if r.Operation == "DescribeTable" || r.Operation == "DescribeTimeToLive" {
			return dynamodbtest.Fate{Status: 400, Code: "AccessDeniedException", Message: "not allowed"}
		}
		return dynamodbtest.Fate{}
	})
	storetest.ExpectFindings(t, "without permissions", s, "dynamodb-unseen", "dynamodb-unseen")
	p.Decide(nil)

	small := newTableName()
	client := dynamodbtest.Client(server.Endpoint)
	_, err := client.CreateTable(t.Context(), &sdk.CreateTableInput{TableName: &small, BillingMode: types.BillingModeProvisioned,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: new("primary_id"),
			AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:             []types.KeySchemaElement{{AttributeName: new("primary_id"), KeyType: types.KeyTypeHash}},
		ProvisionedThroughput: &types.ProvisionedThroughput{ReadCapacityUnits: new(int64(5)), WriteCapacityUnits: new(int64(5))}})
	if err != nil {
		t.Fatal(err)
	}
	storetest.ExpectFindings(t, "little capacity", mustOpen(t, urlOf(small, server.Endpoint, "")), "dynamodb-capacity",
		"dynamodb-ttl")
}
