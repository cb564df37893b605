// Package gcsfence is the fence for objects of Google Cloud Storage: a write that a holder of an older token cannot
// make. It uses Google's client library, which the store itself does without.
package gcsfence

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"cloud.google.com/go/storage"
	"google.golang.org/api/googleapi"

	"github.com/holdfast-go/holdfast/fence"
)

// MetadataKey is the key of the metadata in which [Write] keeps the largest token of an object.
const MetadataKey = "holdfast-fence"

// Write replaces an object if no larger token has written it. It reads the object's token from its metadata, calls
// write, which writes the content and may set the writer's attributes and add to its metadata, and replaces the object
// under the condition that its generation is still the one that was read. If another writer was faster, it begins
// again, so write may be called several times. Conditions that the handle has already are replaced.
//
// The token is in the object's metadata. So it is forgotten when the object is deleted, and when another program gives
// the object new metadata, as a rewrite or a compose may do.
//
// See package fence for what a fence promises. Errors: *fence.StaleError, fence.ErrInvalid for what is not a token,
// the error of write, after which nothing was written, and those of Cloud Storage. If the outcome is not known, the
// call can be repeated with the same token.
func Write(ctx context.Context, object *storage.ObjectHandle, t fence.Token,
	write func(w *storage.Writer) error) error {
	if err := t.Check(); err != nil {
		return err
	}
	for {
		condition, err := checkObject(ctx, object, t)
		if err != nil {
			return err
		}
		if err := writeObject(ctx, object.If(condition), t, write); !hasStatus(err, http.StatusPreconditionFailed) {
			return err
		}
	}
}

// checkObject checks a token against that of an object as it is now, and returns the condition that it is still so.
func checkObject(ctx context.Context, object *storage.ObjectHandle, t fence.Token) (storage.Conditions, error) {
	attrs, err := object.Attrs(ctx)
	if errors.Is(err, storage.ErrObjectNotExist) {
		return storage.Conditions{DoesNotExist: true}, nil
	}
	if err != nil {
		return storage.Conditions{}, err
	}
	if text, ok := attrs.Metadata[MetadataKey]; ok {
		largest, err := fence.Parse(text)
		if err != nil {
			return storage.Conditions{}, fmt.Errorf("the metadata %s of %q: %w", MetadataKey, attrs.Name, err)
		}
		if largest > t {
			return storage.Conditions{}, &fence.StaleError{Resource: attrs.Name, Token: t, Largest: largest}
		}
	}
	return storage.Conditions{GenerationMatch: attrs.Generation}, nil
}

func writeObject(ctx context.Context, object *storage.ObjectHandle, t fence.Token,
	write func(w *storage.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // which drops the upload if write has failed
	w := object.NewWriter(ctx)
	w.Metadata = map[string]string{MetadataKey: t.String()} // the first write of content may send it
	if err := write(w); err != nil {
		return err
	}
	if w.Metadata[MetadataKey] != t.String() {
		return fmt.Errorf("%w: the metadata %s of the writer must stay as it was: add to the map, and do not replace it",
			fence.ErrInvalid, MetadataKey)
	}
	return w.Close()
}

func hasStatus(err error, status int) bool {
	refused, ok := errors.AsType[*googleapi.Error](err)
	return ok && refused.Code == status
}
