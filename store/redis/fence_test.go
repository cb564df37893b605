package redis

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/fencetest"
)

// newFenceClient returns a client of an own server, and a function that runs a command under a token.
func newFenceClient(t *testing.T) (client rueidis.Client, run func(ctx context.Context, token string, words ...string) error) {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{startServer(t).Addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client, func(ctx context.Context, token string, words ...string) error {
		parsed, _ := fence.Parse(token)
		err := client.Do(ctx, client.B().Eval().Script(fence.RedisScript).Numkeys(2).Key("{shoe}:fence", "{shoe}").
			Arg(token).Arg(words...).Build()).Error()
		return fence.RedisError(err, "shoe", parsed)
	}
}

// TestFenceScript: a command runs under tokens that do not fall, and a stale one runs nothing.
func TestFenceScript(t *testing.T) {
	t.Parallel()
	client, run := newFenceClient(t)
	for _, token := range []string{"9", "9", "10", "1795401133863312", "9007199254740990"} {
		if err := run(t.Context(), token, "INCR", "{shoe}"); err != nil {
			t.Errorf("token %s: %v", token, err)
		}
	}
	stale, ok := errors.AsType[*fence.StaleError](run(t.Context(), "9007199254740989", "INCR", "{shoe}"))
	if !ok || stale.Token != 9007199254740989 || stale.Largest != 9007199254740990 {
		t.Errorf("a stale token: %+v", stale)
	}
	for _, token := range []string{"0", "-1", "ten", "", "1.5", "9007199254740992", "nan", "inf", "0x2000000000000", "9e15",
		" 9007199254740991", "9007199254740991 ", "9007199254740990.5"} {
		if err := run(t.Context(), token, "INCR", "{shoe}"); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("token %q: %v", token, err)
		}
	}
	if err := run(t.Context(), "9007199254740991", "LPUSH", "{shoe}", "x"); err == nil || errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a command that fails: %v", err)
	}
	if n, err := client.Do(t.Context(), client.B().Get().Key("{shoe}").Build()).AsInt64(); err != nil || n != 5 {
		t.Errorf("%d commands ran, want 5 (%v)", n, err)
	}
	for _, text := range []string{"many", "nan", "-inf", "-5", "1e15", ""} {
		if err := client.Do(t.Context(), client.B().Set().Key("{shoe}:fence").Value(text).Build()).Error(); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), "9007199254740991", "INCR", "{shoe}"); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("a key that holds %q, which is no token: %v", text, err)
		}
	}
}

// TestFenceScriptCommand: a command that is missing, or too long for the server's scripts, is reported, and its token
// is not remembered.
func TestFenceScriptCommand(t *testing.T) {
	t.Parallel()
	client, run := newFenceClient(t)
	command := func(words int) []string {
		return append([]string{"RPUSH", "{shoe}"}, strings.Split(strings.Repeat("x", words-2), "")...)
	}
	for _, words := range [][]string{nil, command(7001), command(9000)} {
		if err := run(t.Context(), "9", words...); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("a command of %d words: %.200v", len(words), err)
		}
	}
	if err := run(t.Context(), "8", command(7000)...); err != nil {
		t.Errorf("a command of 7000 words: %.200v", err)
	}
	if n, err := client.Do(t.Context(), client.B().Llen().Key("{shoe}").Build()).AsInt64(); err != nil || n != 6998 {
		t.Errorf("%d words are there, want 6998 (%v)", n, err)
	}
}

// TestFenceScriptStaleHolder: no stale holder writes a key.
func TestFenceScriptStaleHolder(t *testing.T) {
	t.Parallel()
	client, run := newFenceClient(t)
	fencetest.Tell(t, fencetest.Resource{
		Steps: 1,
		Write: func(ctx context.Context, token fence.Token, value string, reached func(), fenced bool) error {
			reached()
			if !fenced {
				return client.Do(ctx, client.B().Set().Key("{shoe}").Value(value).Build()).Error()
			}
			return run(ctx, token.String(), "SET", "{shoe}", value)
		},
		Read: func(ctx context.Context) (string, error) {
			return client.Do(ctx, client.B().Get().Key("{shoe}").Build()).ToString()
		},
	})
}
