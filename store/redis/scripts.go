package redis

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"

	"github.com/redis/rueidis"
)

var (
	//go:embed scripts/head.lua
	head string
	//go:embed scripts/lib.lua
	lib string
	//go:embed scripts/notes.lua
	notes string
	//go:embed scripts/foreign.lua
	foreignText string
	//go:embed scripts/try.lua
	tryText string
	//go:embed scripts/tryheld.lua
	tryHeldText string
	//go:embed scripts/free.lua
	freeText string
	//go:embed scripts/renew.lua
	renewText string
	//go:embed scripts/renewone.lua
	renewOneText string
	//go:embed scripts/enterquiet.lua
	enterQuietText string
	//go:embed scripts/enter.lua
	enterText string
	//go:embed scripts/leavequiet.lua
	leaveQuietText string
	//go:embed scripts/leave.lua
	leaveText string
	//go:embed scripts/break.lua
	breakText string
	//go:embed scripts/detach.lua
	detachText string
	//go:embed scripts/show.lua
	showText string
	//go:embed scripts/token.lua
	tokenText string
)

// script is a script. The server keeps it under its digest; where it does not know it (any more) it is sent again.
type script struct{ text, sha string }

func newScript(text string) *script {
	// A comment is for whoever reads the source, and the server need not carry it.
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			lines = append(lines, line)
		}
	}
	text = strings.Join(lines, "")
	sum := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(sum[:])}
}

// layoutScripts are what a layout is: its scripts (those that are nil it does not need), and its keys.
type layoutScripts struct {
	acquire, release, renew, renewShared, acquireQueued, releaseQueued, breakClaim, detach, inspect *script

	keyCount      int                                            // how many of keyspace.all's keys its scripts work on
	recordKey     func(lock string) string                       // the key of the record that try, free and renew work on
	tokenKey      func(lock string) string                       // a further key that try works on
	channel       func(lock string) string                       // the channel on which it is told that a lock is free
	recordPattern func(prefix string) string                     // a pattern for the records of keys with that prefix
	nameOf        func(k keyspace, record string) (string, bool) // a lock's name, from the key of its record
}

// queueParts is what the steps on a lock with a line set up where it is not quiet.
var queueParts = notes + foreignText + lib

var plainScripts = &layoutScripts{
	keyCount:      5,
	channel:       recordKey,
	recordKey:     recordKey,
	recordPattern: func(prefix string) string { return reserved + ":[:/{]*" + prefix + "*" },
	nameOf:        keyspace.nameOfRecord,

	acquire: newScript(tryText + foreignText + tryHeldText), release: newScript(freeText), renew: newScript(renewText), renewShared: newScript(renewOneText),
	acquireQueued: newScript(head + enterQuietText + queueParts + enterText), releaseQueued: newScript(head + leaveQuietText + queueParts + leaveText),
	breakClaim: newScript(head + queueParts + breakText), detach: newScript(head + queueParts + detachText), inspect: newScript(foreignText + showText),
}

func recordKey(lock string) string { return sideKey("", lock) }

// eval runs the script once: one round trip, and another one where the server has to be told the text.
func (p *script) eval(ctx context.Context, c rueidis.Client, keys, args []string) (rueidis.RedisMessage, error) {
	m, err := c.Do(ctx, p.buildCommand(c, keys, args)).ToMessage()
	if isNoScript(err) {
		m, err = c.Do(ctx, c.B().Eval().Script(p.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToMessage()
	}
	return m, err
}

func (p *script) buildCommand(c rueidis.Client, keys, args []string) rueidis.Completed {
	return c.B().Evalsha().Sha1(p.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func isNoScript(err error) bool {
	if err == nil {
		return false
	}
	r, ok := rueidis.IsRedisErr(err)
	return ok && r.IsNoScript()
}
