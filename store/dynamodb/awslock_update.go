package dynamodb

import (
	"context"
	"errors"
	"slices"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// errRefused says that the condition of an update did not hold.
var errRefused = errors.New("the item has changed")

// namedValue is a value in a condition, by the name that it has there.
type namedValue struct {
	name string
	v    types.AttributeValue
}

// conditionalUpdate changes some attributes of an item on conditions.
type conditionalUpdate struct {
	set        map[string]types.AttributeValue
	remove     []string
	conditions []string
	values     []namedValue
}

// addCondition adds a condition, and the values in it by name.
func (u *conditionalUpdate) addCondition(condition string, named ...any) {
	u.conditions = append(u.conditions, condition)
	for i := 0; i < len(named); i += 2 {
		u.values = append(u.values, namedValue{named[i].(string), named[i+1].(types.AttributeValue)})
	}
}

// requireHolder adds the condition that a claim, or a grant, holds the lock. start is its claimPrefix or grantPrefix.
func (u *conditionalUpdate) requireHolder(start string) {
	u.addCondition("begins_with(#rvn, :start)", ":start", textValue(start))
	u.addCondition("attribute_not_exists(isReleased)")
}

// updateItem is one request. If it is refused, it returns the item as it is, where the service sends it, and else nil.
func (a *awslockStore) updateItem(
	ctx context.Context, name string, u conditionalUpdate,
) (stands item, old *item, err error) {
	condition := strings.Join(u.conditions, " AND ")
	names, values := map[string]string{}, item{}
	for ref, attribute := range map[string]string{"#key": a.partitionKey, "#rvn": rvnAttribute} {
		if strings.Contains(condition, ref) {
			names[ref] = attribute
		}
	}
	for _, v := range u.values {
		values[v.name] = v.v
	}
	var sets []string
	for attribute, v := range u.set {
		names["#s"+attribute], values[":s"+attribute] = attribute, v
		sets = append(sets, "#s"+attribute+" = :s"+attribute)
	}
	slices.Sort(sets)
	expression := "SET " + strings.Join(sets, ", ")
	for i, attribute := range u.remove {
		names["#r"+attribute] = attribute
		expression += map[bool]string{true: " REMOVE ", false: ", "}[i == 0] + "#r" + attribute
	}
	out, err := callServer(ctx, a.tableClient, a.client.UpdateItem, &sdk.UpdateItemInput{
		TableName: &a.tableName, Key: a.itemKey(name), UpdateExpression: &expression, ConditionExpression: &condition,
		ExpressionAttributeNames: names, ExpressionAttributeValues: values, ReturnValues: types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if refused := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &refused) {
		if len(refused.Item) > 0 {
			return nil, &refused.Item, errRefused
		}
		return nil, nil, errRefused
	}
	if err != nil {
		return nil, nil, err
	}
	return out.Attributes, nil, nil
}
