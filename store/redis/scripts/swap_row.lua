-- Replaces a row of a table if its version is still the expected one. A version is the server's time of the write, or
-- one more than the last version if that is larger. A deletion leaves the row behind without data, with a version, for
-- a day: so a row that is made again has another version than before, and a late write that expects the old one is
-- refused. A row that is needed only up to some time is expired by the server. The next write takes that back.
--
-- KEYS  1 the row: a hash with v, its version, and d, its data; its key is also the name of its channel
-- ARGV  1 the expected version, '' if there must be no row  2 data  3 '1': delete  4 PUBLISH or SPUBLISH
--       5 until when the row is needed, in milliseconds since 1970, '' if there is no such time  6 '1': write a row that
--       is not replaced as it is, so that WAIT counts the replicas that have it
-- Replies {DONE, version, server microseconds}; {CONFLICT, version, server microseconds, data}
local CONFLICT, DONE = 0, 1
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local r = redis.call('HMGET', KEYS[1], 'v', 'd')
local version = r[2] and r[1] or ''
if version ~= ARGV[1] then
  if ARGV[6] == '1' and r[1] then redis.call('HSET', KEYS[1], 'v', r[1]) end
  return {CONFLICT, version, now, r[2] or ''}
end
local next = string.format('%.0f', math.max((tonumber(r[1]) or 0) + 1, now))
if ARGV[3] == '1' then
  redis.call('HDEL', KEYS[1], 'd')
  redis.call('HSET', KEYS[1], 'v', next)
  redis.call('PEXPIRE', KEYS[1], 86400000)
else
  redis.call('HSET', KEYS[1], 'v', next, 'd', ARGV[2])
  if ARGV[5] ~= '' then
    redis.call('PEXPIREAT', KEYS[1], ARGV[5])
  else
    redis.call('PERSIST', KEYS[1]) -- the row before may have been deleted, or have had an end
  end
end
-- Clients that wait for a change read the row when they are notified.
redis.call(ARGV[4], KEYS[1], '')
return {DONE, next, now}
