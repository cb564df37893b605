package redis

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"path"
	"strings"
	"sync"

	"github.com/redis/rueidis"
)

//go:embed scripts
var scriptFiles embed.FS

// script is a Lua script. The server caches it under its SHA-1 digest, until it restarts or runs SCRIPT FLUSH, and a
// new primary may never have had it (redis.io: "Scripting with Lua"). So no caller may assume that it is there: eval
// sends the text when the server does not know the digest.
type script struct{ load func() scriptContent }

// scriptContent is the text of a script as the server receives it, and its digest.
type scriptContent struct{ text, sha string }

func (s *script) text() string { return s.load().text }
func (s *script) sha() string  { return s.load().sha }

// loadScript reads a script from its file, when it is first used: all of them at the start would take longer than a
// whole run of a program that uses another store. A line "--- include FILE" is replaced by the text of that file,
// whose local variables the rest of the script can use. Where an include is placed matters for speed. Calling a
// function costs Redis less than a command, but each function is set up in every run of the script, even if it is not
// called. So a script includes only what it needs, and only after the usual cases have returned.
func loadScript(file string) *script {
	return &script{sync.OnceValue(func() scriptContent { return prepareScript(readScript(path.Join("scripts", file))) })}
}

// readScript reads a file and the files that it includes. It panics if one is missing.
func readScript(file string) string {
	text, err := scriptFiles.ReadFile(file)
	if err != nil {
		panic(err) // the files are part of the program
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if included, ok := strings.CutPrefix(strings.TrimSpace(line), "--- include "); ok {
			line = readScript(path.Join(path.Dir(file), included))
		}
		b.WriteString(line)
	}
	return b.String()
}

// prepareScript removes the comments, which the server need not receive, parse and keep.
func prepareScript(text string) scriptContent {
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			lines = append(lines, line)
		}
	}
	text = strings.Join(lines, "")
	sum := sha1.Sum([]byte(text))
	return scriptContent{text, hex.EncodeToString(sum[:])}
}

// layoutScripts is what differs between layouts: the scripts and the keys. A layout that cannot do something has nil
// for its script.
type layoutScripts struct {
	acquire, release, renew, renewShared, acquireQueued, releaseQueued, breakClaim, detach, inspect, raiseToken *script

	// how many of the keys of keyspace.allKeys the scripts breakClaim, detach and inspect use
	keyCount int
	// the key of the record that acquire, release and renew use
	recordKey func(lock string) string
	// a further key that acquire uses; nil if there is none
	tokenKey func(lock string) string
	// the channel on which waiting clients learn that a lock is free
	channel       func(lock string) string
	recordPattern func(prefix string) string                     // a SCAN pattern for the records of keys with that prefix
	nameOf        func(k keyspace, record string) (string, bool) // the lock's name, from the key of its record
}

// plainScripts has all scripts of LayoutPlain.
var plainScripts = &layoutScripts{
	acquire:       loadScript("acquire.lua"),
	release:       loadScript("release.lua"),
	renew:         loadScript("renew.lua"),
	renewShared:   loadScript("renew_shared.lua"),
	acquireQueued: loadScript("acquire_queued.lua"),
	releaseQueued: loadScript("release_queued.lua"),
	breakClaim:    loadScript("break.lua"),
	detach:        loadScript("detach.lua"),
	inspect:       loadScript("inspect.lua"),
	raiseToken:    loadScript("raise_token.lua"),

	keyCount:      5,
	channel:       recordKey,
	recordKey:     recordKey,
	recordPattern: func(prefix string) string { return reserved + ":[:/{]*" + prefix + "*" },
	nameOf:        keyspace.nameOfRecord,
}

// recordKey returns the key of a lock's record.
func recordKey(lock string) string { return sideKey("", lock) }

// eval runs the script once: in one round trip, or in two if the server does not know it. After NOSCRIPT nothing has
// run, so the second request is no repetition. EVAL also makes the server cache the text for the next EVALSHA.
func (s *script) eval(ctx context.Context, c rueidis.Client, keys, args []string) (rueidis.RedisMessage, error) {
	m, err := c.Do(ctx, s.buildCommand(c, keys, args)).ToMessage()
	if isNoScript(err) {
		m, err = c.Do(ctx, s.buildWithText(c, keys, args)).ToMessage()
	}
	return m, err
}

// buildCommand returns the command for a server that knows the script.
func (s *script) buildCommand(c rueidis.Client, keys, args []string) rueidis.Completed {
	return c.B().Evalsha().Sha1(s.sha()).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

// buildWithText returns the command for a server that does not know the script.
func (s *script) buildWithText(c rueidis.Client, keys, args []string) rueidis.Completed {
	return c.B().Eval().Script(s.text()).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

// isNoScript reports whether the server did not know the digest, and so has run nothing.
func isNoScript(err error) bool {
	if err == nil {
		return false
	}
	r, ok := rueidis.IsRedisErr(err)
	return ok && r.IsNoScript()
}
