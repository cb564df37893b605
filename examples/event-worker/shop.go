package main

import (
	"context"
	"fmt"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/store/dynamodb"
)

const (
	customerTable = "customers"
	parcelTable   = "parcels"
)

// shop is what the workers work on: two tables with the key "name".
type shop struct{ *sdk.Client }

func (s *shop) createTables(ctx context.Context) error {
	for _, table := range []string{customerTable, parcelTable} {
		if _, err := s.CreateTable(ctx, &sdk.CreateTableInput{
			TableName: &table, BillingMode: types.BillingModePayPerRequest,
			AttributeDefinitions: []types.AttributeDefinition{
				{AttributeName: new("name"), AttributeType: types.ScalarAttributeTypeS}},
			KeySchema: []types.KeySchemaElement{{AttributeName: new("name"), KeyType: types.KeyTypeHash}},
		}); err != nil {
			return err
		}
		exists := sdk.NewTableExistsWaiter(s, func(o *sdk.TableExistsWaiterOptions) {
			o.MinDelay, o.MaxDelay = 50*time.Millisecond, time.Second
		})
		if err := exists.Wait(ctx, &sdk.DescribeTableInput{TableName: &table}, time.Minute); err != nil {
			return err
		}
	}
	return nil
}

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func (s *shop) addCustomer(ctx context.Context, name string) error {
	_, err := s.PutItem(ctx, &sdk.PutItemInput{TableName: new(customerTable),
		Item: map[string]types.AttributeValue{"name": text(name)}})
	return err
}

// customerOf returns who has ordered.
func customerOf(order string) string {
	if order == benOrder {
		return "ben"
	}
	return "anna"
}

// sendParcel sends the parcel of an order, if the customer is known. It can be repeated: an order has one parcel. The
// parcel keeps the token of the run, so a run that was taken over cannot change it.
func (s *shop) sendParcel(ctx context.Context, order string, run *holdfast.Run) error {
	token, err := fence.Of(run)
	if err != nil {
		return err
	}
	customer := customerOf(order)
	found, err := s.GetItem(ctx, &sdk.GetItemInput{TableName: new(customerTable), ConsistentRead: new(true),
		Key: map[string]types.AttributeValue{"name": text(customer)}})
	if err != nil {
		return err
	}
	if len(found.Item) == 0 {
		return fmt.Errorf("the customer %s is not known", customer)
	}
	put := &sdk.PutItemInput{TableName: new(parcelTable),
		Item: map[string]types.AttributeValue{"name": text(order), "customer": text(customer), "run": text(run.ID())}}
	if err := dynamodb.FencePut(put, token); err != nil {
		return err
	}
	_, err = s.PutItem(ctx, put)
	return dynamodb.FenceError(err, order, token)
}

// readParcels returns the run that has sent each parcel.
func (s *shop) readParcels(ctx context.Context) (map[string]string, error) {
	out, err := s.Scan(ctx, &sdk.ScanInput{TableName: new(parcelTable), ConsistentRead: new(true)})
	if err != nil {
		return nil, err
	}
	runs := map[string]string{}
	for _, it := range out.Items {
		name, _ := it["name"].(*types.AttributeValueMemberS)
		run, _ := it["run"].(*types.AttributeValueMemberS)
		runs[name.Value] = run.Value
	}
	return runs, nil
}

// readNewestStatus is what a plain worker without Holdfast does first: it reads the newest row of an event. It goes on
// only if there is none, or if that is "failed".
func readNewestStatus(ctx context.Context, client *sdk.Client, event string) (string, error) {
	out, err := client.Query(ctx, &sdk.QueryInput{
		TableName: new(ledgerTable), ConsistentRead: new(true), ScanIndexForward: new(false), Limit: new(int32(1)),
		KeyConditionExpression:    new("partition_key = :event"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":event": text(event)},
	})
	if err != nil || len(out.Items) == 0 {
		return "", err
	}
	status, _ := out.Items[0]["exec_status"].(*types.AttributeValueMemberS)
	return status.Value, nil
}
