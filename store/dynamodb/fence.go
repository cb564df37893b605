package dynamodb

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/fence"
)

// fenceAttribute is the attribute of an item that keeps the largest token that has written the item.
const fenceAttribute = "holdfast_fence"

// Placeholders in expressions.
const (
	fenceName  = "#holdfast_fence"
	fenceValue = ":holdfast_fence"
)

// fenceCondition holds for an item without a token, and for one whose token is not larger. DynamoDB compares numbers as
// numbers; it is false for a token that is stored as text.
const fenceCondition = "attribute_not_exists(" + fenceName + ") OR " + fenceName + " <= " + fenceValue

// FencePut makes a put reject a stale token: it adds the token to the item, in the attribute holdfast_fence, and a
// condition that no larger one is there, besides the put's own condition. Items that are deleted forget their token, so
// mark them as deleted instead. The error of the put goes through [FenceError].
//
// See package fence for what a fence promises. It returns fence.ErrInvalid for a number that is not a token, and
// changes nothing then.
func FencePut(in *sdk.PutItemInput, t fence.Token) error {
	value, err := encodeToken(t)
	if err != nil {
		return err
	}
	in.Item = maps.Clone(in.Item)
	if in.Item == nil {
		in.Item = map[string]types.AttributeValue{}
	}
	in.Item[fenceAttribute] = value
	in.ConditionExpression = addFenceCondition(in.ConditionExpression)
	in.ExpressionAttributeNames, in.ExpressionAttributeValues = addFenceAttributes(in.ExpressionAttributeNames,
		in.ExpressionAttributeValues, value)
	in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	return nil
}

// FenceUpdate makes an update reject a stale token, as [FencePut] does. The update must have an UpdateExpression or
// none; the older AttributeUpdates cannot be used with conditions.
func FenceUpdate(in *sdk.UpdateItemInput, t fence.Token) error {
	value, err := encodeToken(t)
	if err != nil {
		return err
	}
	set := "SET " + fenceName + " = " + fenceValue
	if in.UpdateExpression != nil {
		set = addToSet(*in.UpdateExpression)
	}
	in.UpdateExpression = &set
	in.ConditionExpression = addFenceCondition(in.ConditionExpression)
	in.ExpressionAttributeNames, in.ExpressionAttributeValues = addFenceAttributes(in.ExpressionAttributeNames,
		in.ExpressionAttributeValues, value)
	in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	return nil
}

// FenceError turns the error of a put or update that [FencePut] or [FenceUpdate] has changed into a *fence.StaleError
// if its token was stale. resource names the item in it. If the request's own condition was false, and for all other
// errors, it returns the error as it is.
func FenceError(err error, resource string, t fence.Token) error {
	refused, ok := errors.AsType[*types.ConditionalCheckFailedException](err)
	if !ok {
		return err
	}
	switch seen := refused.Item[fenceAttribute].(type) {
	case nil: // there is no token, so it was the request's own condition
		return err
	case *types.AttributeValueMemberN:
		largest, parseErr := fence.Parse(seen.Value)
		if parseErr != nil {
			return fmt.Errorf("the attribute %s of %q: %w", fenceAttribute, resource, parseErr)
		}
		if largest <= t {
			return err
		}
		return &fence.StaleError{Resource: resource, Token: t, Largest: largest}
	default:
		return fmt.Errorf("%w: the attribute %s of %q is not a number, so tokens cannot be compared: store the token as N",
			fence.ErrInvalid, fenceAttribute, resource)
	}
}

func encodeToken(t fence.Token) (types.AttributeValue, error) {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(int64(t), 10)}, t.Check()
}

func addFenceCondition(condition *string) *string {
	all := fenceCondition
	if condition != nil && *condition != "" {
		all = "(" + *condition + ") AND (" + fenceCondition + ")"
	}
	return &all
}

// addFenceAttributes adds what the condition of a fence names. It copies the caller's maps.
func addFenceAttributes(names map[string]string, values map[string]types.AttributeValue, token types.AttributeValue) (
	map[string]string, map[string]types.AttributeValue) {
	names, values = maps.Clone(names), maps.Clone(values)
	if names == nil {
		names = map[string]string{}
	}
	if values == nil {
		values = map[string]types.AttributeValue{}
	}
	names[fenceName], values[fenceValue] = fenceAttribute, token
	return names, values
}

// addToSet adds the token to the SET clause of an update expression, which may have one such clause at most. The
// names of clauses are reserved words of DynamoDB, so no attribute is called SET in an expression.
func addToSet(expression string) string {
	assignment := fenceName + " = " + fenceValue
	words := strings.Fields(expression)
	for i, w := range words {
		if strings.EqualFold(w, "SET") {
			words[i] = "SET " + assignment + ","
			return strings.Join(words, " ")
		}
	}
	return "SET " + assignment + " " + expression
}
