-- As ../acquire.lua, in Redisson's layout: the lock is a hash whose field is the holder, with a count of 1. Redisson
-- counts re-entries there, which we never make.
--
-- KEYS  1 the lock  2 its record  3 Redisson's token key, which RFencedLock counts up too
-- ARGV  as in ../acquire.lua
-- Replies as ../acquire.lua does, but never with USE_QUEUE: this layout has no queue
--- include ../shared/foreign.lua
local HELD, GRANTED, BROKEN, TOMBSTONED = 0, 1, 2, 7
local KEEP = 86400000 -- in ms: retention in redis.go
local lock, record, id = KEYS[1], KEYS[2], ARGV[1]
local field = id .. ':1'
local kind = redis.call('TYPE', lock).ok
local h = redis.call('HMGET', record, 'token', 'id', 'flags', 'bar', '~' .. id, 'drawn')
if kind ~= 'none' then
  local left = redis.call('PTTL', lock)
  if kind == 'hash' then
    if redis.call('HEXISTS', lock, field) == 1 and h[2] == id then
      local flags = h[3] or ''
      if string.find(flags, 'b', 1, true) then return {BROKEN} end
      redis.call('PEXPIRE', lock, ARGV[2])
      redis.call('PEXPIRE', record, ARGV[2] + KEEP)
      return {GRANTED, tonumber(h[1])}
    elseif h[2] and redis.call('HEXISTS', lock, h[2] .. ':1') == 1 then
      local s = redis.call('HMGET', record, 'owner', 'meta', 'ttl', 'since')
      return {HELD, left, 0, 0, {h[2], h[1], s[1], s[2], s[3], s[4], h[3], '1', left}}
    end
  end
  local what, digest = describe_foreign(lock)
  return {HELD, left, 0, 0, {digest, '', what, '', '', '', 'f', '1', left}}
end
if h[5] then return {BROKEN} end -- see ../shared/notes.lua
if h[4] and string.find(h[4], id, 1, true) then return {TOMBSTONED} end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local counted = redis.call('GET', KEYS[3])
-- The token is more than ours and more than Redisson's, so that it rises across both kinds of client.
local token = math.max((tonumber(h[1]) or 0) + 1, (tonumber(counted) or 0) + 1, now)
local text = string.format('%.0f', token)
redis.call('HSET', lock, field, '1')
redis.call('PEXPIRE', lock, ARGV[2])
-- Redisson sets no expiry on its token key. If Redisson has made the key, or has counted it up since our last grant, it
-- gets none here either. A key that only we use expires with the record.
if counted and (counted ~= h[6] or redis.call('PTTL', KEYS[3]) == -1) then
  redis.call('SET', KEYS[3], text)
else
  redis.call('SET', KEYS[3], text, 'PX', ARGV[2] + KEEP)
end
redis.call('HSET', record, 'id', id, 'token', text, 'drawn', text, 'owner', ARGV[3], 'meta', ARGV[4] or '',
  'ttl', ARGV[2], 'since', string.format('%.0f', now), 'flags', ARGV[5] or '')
redis.call('PEXPIRE', record, ARGV[2] + KEEP)
return token
