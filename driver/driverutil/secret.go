package driverutil

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
)

// Secret is a password or a token of a store's URL: a text in the URL, or the content of a file that the URL names. A
// password in a file need not be in the URL, where a list of processes or a log may show it. And it may be replaced:
// the file is read again for each connection. The zero Secret is empty. The methods may be called concurrently.
type Secret struct {
	text string // that of the URL, or what the file had when it was last good
	path string

	mu      sync.Mutex
	problem error
}

// SetText sets the secret to the text that the URL has, which may be empty. It is called before the secret is used.
func (s *Secret) SetText(text string) { s.text = text }

// ReadFrom names the file, and reads it for the first time.
func (s *Secret) ReadFrom(path string) error {
	text, err := readSecret(path)
	if err != nil {
		return err
	}
	s.text, s.path = text, path
	return nil
}

// IsFile reports whether the secret is in a file.
func (s *Secret) IsFile() bool { return s.path != "" }

// Current returns the secret as it is now. While the file is empty or cannot be read, as when it is being replaced,
// that is what it had before.
func (s *Secret) Current() string {
	if s.path == "" {
		return s.text
	}
	text, err := readSecret(s.path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem = err; err == nil {
		s.text = text
	}
	return s.text
}

// Sources is the secret as a list for [Admission].
func (s *Secret) Sources() []SecretSource { return []SecretSource{s} }

// Problem says why the secret is not that of the file, or is nil.
func (s *Secret) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem == nil {
		return nil
	}
	return fmt.Errorf("what the file had before was used: %w", s.problem)
}

// readSecret returns the content of a file without the line breaks at its end that editors and echo write.
func readSecret(path string) (string, error) {
	data, err := os.ReadFile(path)
	text := strings.TrimRight(string(data), "\r\n")
	if err == nil && text == "" {
		err = errors.New(path + " is empty")
	}
	return text, err
}
