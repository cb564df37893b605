-- Reads all there is to a lock. It changes nothing.
--
-- KEYS  as in head.lua
-- Gives {server microseconds, type of the lock's key, its value or '', ms left, digest if the value is foreign, record,
--        claims, holders with ends, line}
local t = redis.call('TIME')
local kind = redis.call('TYPE', KEYS[1]).ok
local value = kind == 'string' and redis.call('GET', KEYS[1]) or ''
local record = redis.call('HMGET', KEYS[2], 'id', 'token', 'flags', 'kind', 'limit', 'mark', 'owner', 'meta', 'ttl')
local digest = ''
if kind ~= 'none' and value ~= record[1] and value ~= record[6] then
  digest = redis.sha1hex(redis.call('DUMP', KEYS[1]))
  value = string.sub(value, 1, 256)
end
return {t[1] * 1000000 + t[2], kind, value, redis.call('PTTL', KEYS[1]), digest, record, redis.call('HGETALL', KEYS[3]),
  redis.call('ZRANGE', KEYS[4], 0, -1, 'WITHSCORES'), redis.call('ZRANGE', KEYS[5], 0, -1)}
