-- Renews one holder of a read-write lock or a semaphore.
--
-- KEYS  1 the lock  2 its record  3 claims  4 holders by expiry (see shared/state.lua)
-- ARGV  1 how long all of these are kept, in ms  2 claim id  3 token  4 TTL in ms
-- Replies as renew.lua does for one claim
local GONE, RENEWED, RELEASE_REQUESTED, TAKEN, BROKEN, MARKED, DETACHED = 0, 1, 3, -1, -2, -3, 1000000000
local lock, record, claims, holders, id = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[2]
local h = redis.call('HMGET', record, 'mark', 'kept', '~' .. id)
local mark = h[1]
if h[3] then return BROKEN end -- see shared/notes.lua
local value = redis.pcall('GET', lock)
if not value then return GONE end
if not mark or value ~= mark then return TAKEN end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local expires = redis.call('ZSCORE', holders, id)
if not expires or tonumber(expires) <= now then return GONE end
local c = redis.call('HGET', claims, id)
if not c then return GONE end
c = cjson.decode(c)
local flags = c.flags or ''
if c.token ~= ARGV[3] then return TAKEN end
if string.find(flags, 'b', 1, true) then return MARKED end
local ttl = ARGV[4]
local detached = string.find(flags, 'd', 1, true)
-- A detached claim lasts as long as was said when it was detached.
if detached then ttl = c.ttl end
expires = now + ttl * 1000
-- The lock's key must outlive all its holders, and this one may have been the last to expire.
local last = redis.call('ZREVRANGE', holders, 0, 1, 'WITHSCORES')
for i = 1, #last, 2 do
  if last[i] ~= id then expires = math.max(expires, last[i + 1]) end
end
-- PEXPIREAT comes first: a server that is out of memory refuses a command that may take memory, like ZADD, if it is the
-- script's first write, and accepts it later in the script (redis.io: "Scripting with Lua"). So holders keep their
-- leases on a full server.
redis.call('PEXPIREAT', lock, string.format('%.0f', math.ceil(expires / 1000) + 1))
redis.call('ZADD', holders, string.format('%.0f', now + ttl * 1000), id)
if (tonumber(h[2]) or 0) < now + ARGV[1] * 1000 then
  redis.call('PEXPIRE', record, ARGV[1] + 3600000)
  for i = 3, 4 do redis.call('PEXPIRE', KEYS[i], ARGV[1] - 82800000) end -- a day less than the record, see shared/state.lua
  redis.call('HDEL', record, 'kept')
end
if detached then return DETACHED + ttl end
return string.find(flags, 'a', 1, true) and RELEASE_REQUESTED or RENEWED
