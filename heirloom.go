package holdfast

import (
	"fmt"
	"os"

	"github.com/holdfast-go/holdfast/driver"
)

// LivenessFile is for supervisors of work that may outlive this process, such as the guard of the command. It returns a
// file which, for as long as any process has it open, keeps the client's claims standing like those of a living client,
// also when this process was killed; they end by their TTL then, and not at once. Give it to the process that ends the
// work (exec.Cmd.ExtraFiles), and not to the work itself, and close it here; do not close the client before that process
// has ended.
//
// The error Is ErrUnsupported where a killed client's claims end by their TTL anyway, so that there is nothing to keep.
func (c *Client) LivenessFile() (*os.File, error) {
	if !c.crew.join() {
		return nil, c.wrap("heirloom", "", ErrClosed)
	}
	defer c.crew.leave()
	h, ok := c.store.(driver.LivenessFiler)
	if !ok {
		return nil, c.wrap("heirloom", "", fmt.Errorf("%w: claims end by their TTL", ErrUnsupported))
	}
	f, err := h.LivenessFile()
	if err != nil {
		return nil, c.wrap("heirloom", "", err)
	}
	return f, nil
}
