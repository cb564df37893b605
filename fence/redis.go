package fence

import (
	"strings"
)

// RedisScript checks a token and runs one command, in one step. KEYS[1] is the key in which the largest token is
// kept: all writers use the same one. The other KEYS are those of the command. ARGV[1] is the token, and the rest of
// ARGV is the command with its arguments, at most 7000 words. In a Cluster all keys must be in one slot, so use a
// hash tag: {stock:shoe}:fence.
//
// With go-redis:
//
//	script := redis.NewScript(fence.RedisScript)
//	err := script.Run(ctx, rdb, []string{"{shoe}:fence", "{shoe}"}, token.String(), "HSET", "{shoe}", "stock", 41).Err()
//	err = fence.RedisError(err, "shoe", token)
//
// The script returns the command's reply. If the token is stale, it runs nothing, and returns an error, which
// [RedisError] turns into a [*StaleError]. If the command itself fails, the token is remembered nevertheless, which
// rejects nobody who may write. The key with the token has no TTL. A server that loses data, or that evicts
// keys, forgets the token: see GUARANTEES.md on what each setup of Redis survives.
const RedisScript = `local function parse(text)
	local n = string.find(text, '^%d+$') and tonumber(text) -- tonumber alone takes 0x10, 1e3 and nan
	return n and n >= 1 and n <= 9007199254740991 and n
end
local token, seen = parse(ARGV[1]), redis.call('GET', KEYS[1])
if not token then return redis.error_reply('INVALIDTOKEN ' .. ARGV[1]) end
if #ARGV < 2 then return redis.error_reply('INVALIDCOMMAND the command is missing') end
if #ARGV > 7001 then return redis.error_reply('INVALIDCOMMAND the command has more than 7000 words') end
if seen then
	local largest = parse(seen)
	if not largest then return redis.error_reply('NOTOKEN ' .. KEYS[1] .. ' holds no token') end
	if largest > token then return redis.error_reply('STALETOKEN ' .. seen) end
end
redis.call('SET', KEYS[1], ARGV[1])
return redis.call(unpack(ARGV, 2))
`

// RedisError turns the error of [RedisScript], as any client returns it, into a [*StaleError] or an error that matches
// [ErrInvalid]. It returns all other errors as they are.
func RedisError(err error, resource string, t Token) error {
	if err == nil {
		return nil
	}
	code, rest, _ := strings.Cut(strings.TrimPrefix(err.Error(), "ERR "), " ")
	switch code {
	case "STALETOKEN":
		largest, _ := Parse(rest) // 0 if a client has changed the text
		return &StaleError{Resource: resource, Token: t, Largest: largest}
	case "INVALIDTOKEN":
		return invalid("%.40q is not a fencing token", rest)
	case "INVALIDCOMMAND":
		return invalid("%s", rest)
	case "NOTOKEN":
		return invalid("%s: it must be a key that only the fence writes", rest)
	}
	return err
}
