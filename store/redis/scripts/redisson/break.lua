-- As ../break.lua, in Redisson's layout. NOT_FOUND, DONE, FOREIGN and NO_LOCK are its replies.
--
-- KEYS  1 the lock  2 its record
-- ARGV  1 PUBLISH or SPUBLISH  2 Redisson's channel  3 how long the record is kept, in ms
--       4 claim id, or 'f.' and the digest of a foreign value  5 mode: '0' graceful, '1' force, '2' request a release  6 why; it is not kept
--- include ../shared/notes.lua
--- include ../shared/foreign.lua
local NOT_FOUND, DONE, FOREIGN, NO_LOCK = 0, 1, -1, -2
local GRACEFUL, FORCE = '0', '1'
local lock, record, me, mode = KEYS[1], KEYS[2], ARGV[4], ARGV[5]
local kind = redis.call('TYPE', lock).ok
if kind == 'none' then return NOT_FOUND end
local h = redis.call('HMGET', record, 'id', 'flags')
redis.call('HDEL', record, 'none') -- makes a server that is out of memory accept the next write
local ours = kind == 'hash' and h[1] and redis.call('HEXISTS', lock, h[1] .. ':1') == 1
if string.sub(me, 1, 2) == 'f.' then
  if ours then return NOT_FOUND end
  local _, digest, whole = describe_foreign(lock)
  if 'f.' .. digest ~= me then return NOT_FOUND end
  if mode ~= FORCE then return FOREIGN end
  if not whole then return NO_LOCK end
elseif not ours or h[1] ~= me then
  return NOT_FOUND
elseif mode ~= FORCE then
  local flags, flag = h[2] or '', mode == GRACEFUL and 'b' or 'a'
  if not string.find(flags, flag, 1, true) then redis.call('HSET', record, 'flags', flags .. flag) end
  return DONE
else
  local t = redis.call('TIME')
  local token = math.max((tonumber(redis.call('HGET', record, 'token')) or 0) + 1, t[1] * 1000000 + t[2])
  redis.call('HSET', record, 'token', string.format('%.0f', token))
  -- The holder learns of the break by the note, and the token rises: see ../break.lua.
  add_note(record, me, redis.call('HGET', record, 'ttl'), t[1] * 1000000 + t[2])
  redis.call('PEXPIRE', record, ARGV[3] + 86400000) -- a note is needed for as long as the longest TTL
end
-- Redisson's message for a lock that is free is "0".
redis.call('DEL', lock)
redis.call(ARGV[1], ARGV[2], '0')
return DONE
