// Package azurefence is the fence for blobs of Azure Storage: a write that a holder of an older token cannot make. It
// uses Microsoft's client library, which the store itself does without.
package azurefence

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"

	"github.com/holdfast-go/holdfast/fence"
)

// MetadataKey is the key of the metadata in which [Write] keeps the largest token of a blob. The service accepts no
// dash in it.
const MetadataKey = "holdfastfence"

// Write replaces the content of a blob if no larger token has written it. It reads the blob's token from its metadata,
// and replaces the blob under the condition that its ETag is still the one that was read. If another writer was faster,
// it begins again. opts are passed to the upload; nil means the defaults. Conditions on the ETag that they have already
// are replaced.
//
// The token is in the blob's metadata. So it is forgotten when the blob is deleted, and when another program gives the
// blob new metadata. The client must not send a request again by itself, or an upload that took effect can be reported
// as stale: set MaxRetries of its policy.RetryOptions to -1.
//
// See package fence for what a fence promises. Errors: *fence.StaleError, fence.ErrInvalid for what is not a token, and
// those of the service. If the outcome is not known, the call can be repeated with the same token.
func Write(ctx context.Context, client *blockblob.Client, t fence.Token, data []byte, opts *blockblob.UploadBufferOptions) error {
	if err := t.Check(); err != nil {
		return err
	}
	var o blockblob.UploadBufferOptions
	if opts != nil {
		o = *opts
	}
	o.Metadata = maps.Clone(o.Metadata)
	if o.Metadata == nil {
		o.Metadata = map[string]*string{}
	}
	o.Metadata[MetadataKey] = to.Ptr(t.String())
	var conditions blob.AccessConditions
	if o.AccessConditions != nil {
		conditions = *o.AccessConditions
	}
	o.AccessConditions = &conditions
	for {
		var err error
		if conditions.ModifiedAccessConditions, err = checkBlob(ctx, client, t); err != nil {
			return err
		}
		_, err = client.UploadBuffer(ctx, data, &o)
		if !bloberror.HasCode(err, bloberror.ConditionNotMet, bloberror.BlobAlreadyExists) {
			return err
		}
	}
}

// checkBlob checks a token against that of a blob as it is now, and returns the condition that it is still so.
func checkBlob(ctx context.Context, client *blockblob.Client, t fence.Token) (*blob.ModifiedAccessConditions, error) {
	now, err := client.GetProperties(ctx, nil)
	if bloberror.HasCode(err, bloberror.BlobNotFound) {
		return &blob.ModifiedAccessConditions{IfNoneMatch: to.Ptr(azcore.ETagAny)}, nil
	}
	if err != nil {
		return nil, err
	}
	for key, text := range now.Metadata {
		if !strings.EqualFold(key, MetadataKey) || text == nil { // the case of headers is lost
			continue
		}
		largest, err := fence.Parse(*text)
		if err != nil {
			return nil, fmt.Errorf("the metadata %s of %s: %w", MetadataKey, nameOf(client), err)
		}
		if largest > t {
			return nil, &fence.StaleError{Resource: nameOf(client), Token: t, Largest: largest}
		}
	}
	return &blob.ModifiedAccessConditions{IfMatch: now.ETag}, nil
}

// nameOf is the container and the name of a blob.
func nameOf(client *blockblob.Client) string {
	parts, err := blob.ParseURL(client.URL())
	if err != nil {
		return "a blob" // the address may have a signature
	}
	return parts.ContainerName + "/" + parts.BlobName
}
