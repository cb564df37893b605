package httpclient

import (
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
)

// CredentialsAccepted notes that the service knows these credentials. A store calls it after a refusal that shows it:
// that there is no such object, or that it has changed. The client itself sees that a request was done.
func (c *Client) CredentialsAccepted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.worked, c.refused = true, false
}

// HasWorked reports whether the service has ever accepted the credentials.
func (c *Client) HasWorked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.worked
}

// CredentialsRefused returns the error of a request whose credentials the service does not know, or takes for expired.
// That may pass once they have worked: they are replaced a little late, or one of several servers does not know them
// yet. So it counts as if the service did not answer, and is [driver.ErrDenied] only when it has lasted for the
// driver.UnreachableTimeout.
func (c *Client) CredentialsRefused(err error) error {
	limit := driver.UnreachableTimeout(driver.MaxTTL)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.service.Clock.Now()
	if !c.refused || now.Since(c.refusedLast) > limit { // after a pause it may be another cause
		c.refused, c.refusedSince = true, now
	}
	c.refusedLast = now
	if c.worked && now.Since(c.refusedSince) <= limit {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrDenied, err)
}
