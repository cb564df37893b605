-- As ../detach.lua, in Redisson's layout: only the key's expiry and the record change, so that Redisson sees a holder
-- as before.
--
-- KEYS  1 the lock  2 its record
-- ARGV  1 PUBLISH or SPUBLISH  2 Redisson's channel  3 how long the record is kept, in ms  4 claim id  5 token 6 for
--       how long, in ms
-- Replies GONE, DONE, TAKEN or BROKEN
local GONE, DONE, TAKEN, BROKEN = 0, 1, -1, -2
local kind = redis.call('TYPE', KEYS[1]).ok
local ended = redis.call('HEXISTS', KEYS[2], '~' .. ARGV[4]) == 1 and BROKEN -- see ../shared/notes.lua
if kind == 'none' then return ended or GONE end
if kind ~= 'hash' or redis.call('HEXISTS', KEYS[1], ARGV[4] .. ':1') == 0 then return ended or TAKEN end
local h = redis.call('HMGET', KEYS[2], 'id', 'token', 'flags')
local flags = h[3] or ''
if h[1] ~= ARGV[4] or h[2] ~= ARGV[5] then return TAKEN end
if string.find(flags, 'b', 1, true) then return BROKEN end
redis.call('PEXPIRE', KEYS[1], ARGV[6])
if not string.find(flags, 'd', 1, true) then flags = flags .. 'd' end
redis.call('HSET', KEYS[2], 'flags', flags, 'ttl', ARGV[6])
redis.call('PEXPIRE', KEYS[2], ARGV[6] + ARGV[3])
return DONE
