-- Reads a row of a table. A row without data was deleted.
--
-- KEYS  1 the row
-- Replies {version or '', server microseconds, data}
local t = redis.call('TIME')
local r = redis.call('HMGET', KEYS[1], 'v', 'd')
return {r[2] and r[1] or '', t[1] * 1000000 + t[2], r[2] or ''}
