-- As ../inspect.lua, in Redisson's layout: a lock that we hold is shown as if its value were the holder's claim id.
--
-- KEYS  1 the lock  2 its record
--- include ../shared/foreign.lua
local t = redis.call('TIME')
local kind = redis.call('TYPE', KEYS[1]).ok
local record = redis.call('HMGET', KEYS[2], 'id', 'token', 'flags', 'kind', 'limit', 'mark', 'owner', 'meta', 'ttl')
local value, digest = '', ''
if kind == 'hash' and record[1] and redis.call('HEXISTS', KEYS[1], record[1] .. ':1') == 1 then
  kind, value = 'string', record[1]
elseif kind ~= 'none' then
  kind, digest = describe_foreign(KEYS[1])
end
return {t[1] * 1000000 + t[2], kind, value, redis.call('PTTL', KEYS[1]), digest, record, {}, {}, {}}
