-- Reads a row of a table. A row without data was deleted.
--
-- KEYS  1 the row
-- ARGV  1 '1': write it as it is, so that WAIT counts the replicas that have it
-- Replies {version or '', server microseconds, data}
local t = redis.call('TIME')
local r = redis.call('HMGET', KEYS[1], 'v', 'd')
if ARGV[1] == '1' and r[1] then redis.call('HSET', KEYS[1], 'v', r[1]) end
return {r[2] and r[1] or '', t[1] * 1000000 + t[2], r[2] or ''}
