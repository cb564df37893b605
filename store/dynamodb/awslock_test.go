package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestNonAcquirableItem: an item that no client may take, or whose next token or version cannot be known, is held,
// even if it is marked as released. No client writes to it until an operator breaks it. Then it can be taken.
func TestNonAcquirableItem(t *testing.T) {
	t.Parallel()
	past := versionNumber{claimID: "past", token: 5, expiresAt: time.Now().Add(-time.Hour).UnixMicro()}.makeUnique()
	for what, c := range map[string]struct {
		change item // nil removes the attribute
		free   bool // it may be taken
	}{
		"released":                 {change: item{}, free: true},
		"non-acquirable":           {change: item{releasedAttribute: nil, nonAcquirableAttribute: textValue("1")}},
		"non-acquirable, released": {change: item{nonAcquirableAttribute: textValue("1")}},
		"non-acquirable, ours and over": {change: item{nonAcquirableAttribute: textValue("1"),
			rvnAttribute: textValue(past), releasedAttribute: nil}},
		"non-acquirable, ours and released": {change: item{nonAcquirableAttribute: textValue("1"),
			rvnAttribute: textValue(past)}},
		"token is a text": {change: item{tokenAttribute: textValue("5")}},
		"token is too large": {change: item{tokenAttribute: &types.AttributeValueMemberN{Value: "9" +
			fmt.Sprint(int64(1e18))}}},
		"no version":          {change: item{rvnAttribute: nil, releasedAttribute: nil}},
		"version is a number": {change: item{rvnAttribute: numberText(5), releasedAttribute: nil}},
		"non-acquirable, no owner and no version": {change: item{nonAcquirableAttribute: textValue("1"),
			rvnAttribute:   nil,
			ownerAttribute: nil}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			table, p := newTableName(), newProxy(t, sharedServer(t).Direct)
			s := mustOpen(t, urlOf(table, p.Endpoint, "&layout=awslock"))
			it := item{"key": textValue("m"), ownerAttribute: textValue("them"), leaseAttribute: textValue("1"),
				rvnAttribute: textValue("uuid"), releasedAttribute: textValue("1")}
			for attribute, v := range c.change {
				it[attribute] = v
				if v == nil {
					delete(it, attribute)
				}
			}
			putItem(t, dynamodbtest.Client(sharedServer(t).Endpoint), table, it)
			if c.free {
				acquire(t, s, mutexClaim("m", time.Minute))
				return
			}
			p.Counts()
			if _, err := s.Acquire(t.Context(), mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrHeld) ||
				errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("one who tries is told %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if _, err := s.Acquire(ctx, waitingClaim(mutexClaim("m", time.Minute))); !errors.Is(err,
				context.DeadlineExceeded) {
				t.Errorf("the waiting Acquire returned %v", err)
			}
			if got := p.Counts(); got["UpdateItem"] != 2 {
				t.Errorf("a try and a wait took %v", got)
			}
			h := holdersOf(t, s, "m")
			if len(h) != 1 || h[0].Foreign == (what == "non-acquirable, ours and over") {
				t.Fatalf("shown as %+v", h)
			}
			ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := s.Break(ctx, "m", h[0].Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
				t.Fatal(err)
			}
			if g := acquire(t, s, mutexClaim("m", time.Minute)); g.Token <= 5 {
				t.Errorf("token %d", g.Token)
			}
		})
	}
}

// TestRefusedPauses: a claim whose writes are refused, although the refusal shows a free item, pauses between
// them.
func TestRefusedPauses(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		free := `"Item":{"key":{"S":"m"},"ownerName":{"S":"x"},"leaseDuration":{"S":"20000"},"recordVersionNumber":{"S":"1"},"isReleased":{"S":"1"}}}`
		if r.Header.Get("X-Amz-Target") == "DynamoDB_20120810.GetItem" {
			fmt.Fprint(w, "{", free)
			return
		}
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException","message":"The conditional request failed",`, free)
	}))
	defer srv.Close()
	client := sdk.New(sdk.Options{Region: "x", BaseEndpoint: aws.String(srv.URL),
		Credentials: credentials.NewStaticCredentialsProvider("a", "b", "")})
	a := newAWSLock(newTableClient(client, "locks", &Options{Layout: LayoutAWSLock}), LeaseFormatMillis, 0)
	defer a.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := a.Acquire(ctx, mutexClaim("m", 10*time.Second)); !errors.Is(err, context.DeadlineExceeded) ||
		asked.Load() > 40 {
		t.Errorf("%d requests in 2 s: %v", asked.Load(), err)
	}
}
