package gcs

import (
	"encoding/json"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
)

// version is the content of Row.Version. Foreign metadata are part of it so that a client which has only the version,
// as after an Acquire, can write them back without reading them again; the metageneration makes sure that they are
// still the same.
type version struct {
	Generation     int64             `json:"g"`
	Metageneration int64             `json:"m"`
	Metadata       map[string]string `json:"meta,omitempty"`
	Foreign        bool              `json:"foreign,omitempty"` // another client has created the object
}

// String encodes a version as Row.Version.
func (v version) String() string {
	text, _ := json.Marshal(v) // keys are sorted, so equal versions have equal texts
	return string(text)
}

// versionConditions returns the precondition that the object still has that version.
func versionConditions(text string) (v version, c conditions, err error) {
	if text == "" {
		return v, conditions{doesNotExist: true}, nil
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil || v.Generation == 0 || v.Metageneration == 0 {
		return v, c, fmt.Errorf("%w: the version %q", driver.ErrInvalid, text)
	}
	return v, conditions{generation: v.Generation, metageneration: v.Metageneration}, nil
}
