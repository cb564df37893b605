-- Acquires a free mutex, or repeats the grant of a claim that holds it: so a client that got no reply runs it again. If claims wait in
-- the queue, or hold the lock in another way, it changes nothing and leaves the decision to acquire_queued.lua. It is the most used of
-- all scripts: it sets the key first and looks afterwards, and replies with a bare number where it can. The record is kept for at least
-- KEEP after the lock, and its expiry is moved once per hour only: so it is kept for up to an hour longer.
--
-- KEYS  1 the lock: a string whose value is the holder's claim id
--       2 its record, a hash; shared/state.lua lists its fields
-- ARGV  1 claim id  2 TTL in ms  3 owner  4 meta  5 flags (see shared/state.lua)
--       6 from a Redlock: the number of its round; the record keeps the largest (see release_queued.lua)
--       Those at the end may be missing, which counts as empty.
--
-- Replies with the token of a new grant, or with a list:
--   {GRANTED, token, flags}        this claim holds the lock already
--   {HELD, ms left, 0, 0, holder}  in the shape of acquire_queued.lua's; ms left is less than 0 if it is not known
--   {BROKEN}                       an operator has broken this claim
--   {USE_QUEUE}                    run acquire_queued.lua
--   {TOMBSTONED}                   the claim was released before this request arrived
local HELD, GRANTED, BROKEN, USE_QUEUE, TOMBSTONED = 0, 1, 2, 6, 7
local KEEP = 86400000 -- in ms: retention in redis.go
local call, lock, record, id, ttl = redis.call, KEYS[1], KEYS[2], ARGV[1], ARGV[2]
-- SET with NX first, and the checks afterwards: in the usual case that saves a GET. No other client sees the key in
-- between, since a server runs one script at a time (redis.io: "Scripting with Lua").
local set = call('SET', lock, id, 'NX', 'PX', ttl)
local h = call('HMGET', record, 'token', 'line', 'bar', 'kept', '~' .. id, 'floor', 'flags')
local last_token, has_queue, tombstones, kept_until, was_broken, floor = h[1], h[2], h[3], h[4], h[5], h[6]
if set then
  local tombstoned = tombstones and string.find(tombstones, id, 1, true)
  -- The grant is not valid: an operator has ended the claim, its release came first, or claims wait, which it must not
  -- overtake. Or a promoted claim has not confirmed in time, and acquire_queued.lua has to remove what is left of it.
  if was_broken or tombstoned or has_queue or h[7] and string.find(h[7], 'c', 1, true) then
    call('DEL', lock)
    return {was_broken and BROKEN or tombstoned and TOMBSTONED or USE_QUEUE}
  end
  local t = call('TIME')
  local now = t[1] * 1000000 + t[2]
  -- The token is the server's time, so that it rises even if the record was lost, and more than the last one, so that
  -- it rises if the clock was set back; and at least what an operator has asked for (see raise_token.lua).
  local token = now
  if last_token and last_token + 1 > now then token = last_token + 1 end
  if floor and floor + 0 > token then token = floor + 0 end
  call('HSET', record, 'id', id, 'token', token, 'owner', ARGV[3], 'meta', ARGV[4] or '', 'ttl', ttl, 'flags', ARGV[5] or '')
  if ARGV[6] then call('HSET', record, 'ballot', ARGV[6]) end
  local needed = now + (ttl + KEEP) * 1000
  -- The time is stored too, so that later scripts know, without asking for the TTL, that the record is kept long
  -- enough.
  if not kept_until or kept_until + 0 < needed then
    local kept = needed + 3600000000
    call('HSET', record, 'kept', kept)
    call('PEXPIREAT', record, string.format('%.0f', kept / 1000))
  end
  return token
end

-- The key exists already: as this claim's, another holder's, or a foreign client's.
--- include shared/foreign.lua
local value = redis.pcall('GETRANGE', lock, 0, 1023)
local s = call('HMGET', record, 'id', 'flags', 'owner', 'meta', 'ttl')
-- The claim holds the lock: the reply to an earlier request was lost. The TTL begins again, since the client counts it
-- from the start of this request.
if value == id then
  local flags = s[2] or ''
  -- The record is of another claim, or this claim was promoted: only acquire_queued.lua decides then.
  if s[1] ~= id or string.find(flags, 'c', 1, true) then return {USE_QUEUE} end
  if string.find(flags, 'b', 1, true) then return {BROKEN} end
  call('PEXPIRE', lock, ttl)
  local t = call('TIME')
  if not kept_until or kept_until + 0 < t[1] * 1000000 + t[2] + (ttl + KEEP) * 1000 then
    call('PEXPIRE', record, ttl + KEEP + 3600000)
    call('HDEL', record, 'kept')
  end
  if ARGV[6] and ARGV[6] + 0 > (tonumber(call('HGET', record, 'ballot')) or 0) then call('HSET', record, 'ballot', ARGV[6]) end
  return {GRANTED, tonumber(last_token), flags}
end
if has_queue then return {USE_QUEUE} end
local left = call('PTTL', lock)
if type(value) == 'string' and s[1] == value then
  return {HELD, left, 0, 0, {value, last_token, s[3], s[4], s[5], last_token, s[2], '1', left}}
end
-- The value is the mark of a shared lock.
if type(value) == 'string' and value == call('HGET', record, 'mark') then return {USE_QUEUE} end
local what, digest = describe_foreign(lock)
return {HELD, left, 0, 0, {digest, '', what, '', '', '', 'f', '1', left}}
