-- Replaces a row of a table if its version is still the expected one. A version is the time of the write, or one more than the last
-- version. The row that a deletion leaves behind keeps the version for a day, so that no version is used twice.
--
-- KEYS  1 the row: a hash with v, its version, and d, its data; its key is also the name of its channel
-- ARGV  1 the expected version, '' if there must be no row  2 data  3 '1': delete  4 PUBLISH or SPUBLISH
-- Replies {DONE, version, server microseconds}; {CONFLICT, version, server microseconds, data}
local CONFLICT, DONE = 0, 1
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local r = redis.call('HMGET', KEYS[1], 'v', 'd')
local version = r[2] and r[1] or ''
if version ~= ARGV[1] then return {CONFLICT, version, now, r[2] or ''} end
local next = string.format('%.0f', math.max((tonumber(r[1]) or 0) + 1, now))
if ARGV[3] == '1' then
  redis.call('HDEL', KEYS[1], 'd')
  redis.call('HSET', KEYS[1], 'v', next)
  redis.call('PEXPIRE', KEYS[1], 86400000)
else
  redis.call('HSET', KEYS[1], 'v', next, 'd', ARGV[2])
  redis.call('PERSIST', KEYS[1])
end
redis.call(ARGV[4], KEYS[1], '')
return {DONE, next, now}
