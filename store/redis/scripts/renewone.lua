-- Renews one holder of a read-write lock or a semaphore.
--
-- KEYS  1 the lock  2 its record  3 claims  4 holders by end (see head.lua)
-- ARGV  1 how long all this is kept, in ms  2 claim id  3 token  4 TTL in ms
-- Gives as renew.lua does, for this one
local h = redis.call('HMGET', KEYS[2], 'mark', 'kept', '~' .. ARGV[2])
local mark = h[1]
if h[3] then return -2 end -- see notes.lua
local value = redis.pcall('GET', KEYS[1])
if not value then return 0 end
if not mark or value ~= mark then return -1 end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local ends = redis.call('ZSCORE', KEYS[4], ARGV[2])
if not ends or tonumber(ends) <= now then return 0 end
local c = redis.call('HGET', KEYS[3], ARGV[2])
if not c then return 0 end
c = cjson.decode(c)
local flags = c.flags or ''
if c.token ~= ARGV[3] then return -1 end
if string.find(flags, 'b', 1, true) then return -2 end
local ttl = ARGV[4]
local detached = string.find(flags, 'd', 1, true)
if detached then ttl = c.ttl end -- it lasts as long as was said when it was left
ends = now + ttl * 1000
local last = redis.call('ZREVRANGE', KEYS[4], 0, 1, 'WITHSCORES')
for i = 1, #last, 2 do
  if last[i] ~= ARGV[2] then ends = math.max(ends, last[i + 1]) end
end
-- In this order: a server that is full refuses ZADD where a script writes nothing before it.
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil(ends / 1000) + 1))
redis.call('ZADD', KEYS[4], string.format('%.0f', now + ttl * 1000), ARGV[2])
if (tonumber(h[2]) or 0) < now + ARGV[1] * 1000 then
  redis.call('PEXPIRE', KEYS[2], ARGV[1] + 3600000)
  for i = 3, 4 do redis.call('PEXPIRE', KEYS[i], ARGV[1] - 82800000) end -- a day less, see head.lua
  redis.call('HDEL', KEYS[2], 'kept')
end
if detached then return 1000000000 + ttl end
return string.find(flags, 'a', 1, true) and 3 or 1
