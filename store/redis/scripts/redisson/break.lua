-- As ../break.lua, in Redisson's layout.
--
-- KEYS  1 the lock  2 its record
-- ARGV  1 PUBLISH or SPUBLISH  2 Redisson's channel  3 how long the record is kept, in ms
--       4 claim id, or 'f.' and the digest of a foreign value  5 mode: '0' mark, '1' force, '2' ask
local lock, record, me, mode = KEYS[1], KEYS[2], ARGV[4], ARGV[5]
local kind = redis.call('TYPE', lock).ok
if kind == 'none' then return 0 end
local h = redis.call('HMGET', record, 'id', 'flags')
redis.call('HDEL', record, 'none') -- a server that is full takes the next write then
local ours = kind == 'hash' and h[1] and redis.call('HEXISTS', lock, h[1] .. ':1') == 1
if string.sub(me, 1, 2) == 'f.' then
  if ours then return 0 end
  local _, digest, whole = foreign(lock)
  if 'f.' .. digest ~= me then return 0 end
  if mode ~= '1' then return -1 end
  if not whole then return -2 end -- no lock client makes that
elseif not ours or h[1] ~= me then
  return 0
elseif mode ~= '1' then
  local flags, flag = h[2] or '', mode == '0' and 'b' or 'a'
  if not string.find(flags, flag, 1, true) then redis.call('HSET', record, 'flags', flags .. flag) end
  return 1
else
  local t = redis.call('TIME')
  local token = math.max((tonumber(redis.call('HGET', record, 'token')) or 0) + 1, t[1] * 1000000 + t[2])
  redis.call('HSET', record, 'token', string.format('%.0f', token))
  note(record, me, redis.call('HGET', record, 'ttl'), t[1] * 1000000 + t[2])
  redis.call('PEXPIRE', record, ARGV[3] + 86400000) -- a note is needed for as long as a TTL can be
end
redis.call('DEL', lock)
redis.call(ARGV[1], ARGV[2], '0')
return 1
