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

// step is a script. The server keeps it under its digest; where it does not know it (any more) it is sent again.
type step struct{ text, sha string }

func newStep(text string) *step {
	// A comment is for whoever reads the source, and the server need not carry it.
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			lines = append(lines, line)
		}
	}
	text = strings.Join(lines, "")
	sum := sha1.Sum([]byte(text))
	return &step{text, hex.EncodeToString(sum[:])}
}

// steps are what a layout is: its scripts (those that are nil it does not need), and its keys.
type steps struct {
	try, free, renew, renewOne, enter, leave, breaks, detach, show *step

	reach   int                                            // how many of keyspace.all's keys its scripts work on
	record  func(lock string) string                       // the key of the record that try, free and renew work on
	token   func(lock string) string                       // a further key that try works on
	tells   func(lock string) string                       // the channel on which it is told that a lock is free
	records func(prefix string) string                     // a pattern for the records of keys with that prefix
	nameOf  func(k keyspace, record string) (string, bool) // a lock's name, from the key of its record
}

// slow is what the steps on a lock with a line set up where it is not quiet.
var slow = notes + foreignText + lib

var native = &steps{
	reach:   5,
	tells:   recordOf,
	record:  recordOf,
	records: func(prefix string) string { return reserved + ":[:/{]*" + prefix + "*" },
	nameOf:  keyspace.name,

	try: newStep(tryText + foreignText + tryHeldText), free: newStep(freeText), renew: newStep(renewText), renewOne: newStep(renewOneText),
	enter: newStep(head + enterQuietText + slow + enterText), leave: newStep(head + leaveQuietText + slow + leaveText),
	breaks: newStep(head + slow + breakText), detach: newStep(head + slow + detachText), show: newStep(foreignText + showText),
}

func recordOf(lock string) string { return beside("", lock) }

// do runs the script once: one round trip, and another one where the server has to be told the text.
func (p *step) do(ctx context.Context, c rueidis.Client, keys, args []string) (rueidis.RedisMessage, error) {
	m, err := c.Do(ctx, p.command(c, keys, args)).ToMessage()
	if noScript(err) {
		m, err = c.Do(ctx, c.B().Eval().Script(p.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToMessage()
	}
	return m, err
}

func (p *step) command(c rueidis.Client, keys, args []string) rueidis.Completed {
	return c.B().Evalsha().Sha1(p.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func noScript(err error) bool {
	if err == nil {
		return false
	}
	r, ok := rueidis.IsRedisErr(err)
	return ok && r.IsNoScript()
}
