-- The script of a claim that wants to be granted on a lock with a queue. The claim may be new, or it may wait in the queue and give a
-- sign of life, or it may have been promoted and confirm that, or its grant may have had no reply.
--
-- KEYS  as in shared/state.lua
-- ARGV  1-5 as in shared/state.lua  6 claim id  7 kind  8 limit  9 weight  10 TTL in ms  11 owner  12 meta  13 flags
--       14 '1': wait in the queue; 'plain': too, but the lock is not reserved for this claim when its turn comes (see
--       release_queued.lua)  15 session of the claim's client
--
-- Replies with the token of a grant, or with a list. ms left is the time until the first holder or the roll call ends, and less than 0 if
-- that is not known. look is 1 during a roll call, and if this script has promoted a claim: then this claim looks again after ms left, as all
-- that are ahead of it may be dead. Each holder is a list, see describe_holders.
--   {GRANTED, token, permits}  a grant of a semaphore, with the numbers of its permits
--   {HELD, ms left, waiting claims, look, holders...}
--   {WAITING, ms left, place in the queue, look, holders...}
--   {BROKEN}                 an operator has broken this claim
--   {MISMATCH, kind, limit}  the lock exists with these
--   {FULL, count, words}     too many claims hold the lock or wait for it
--   {TOMBSTONED}             the claim was released before this request arrived
--   {SUPERSEDED}             this claim has waited, and a newer one waits behind it: it must leave the queue
--- include shared/state.lua
local HELD, GRANTED, BROKEN, WAITING, MISMATCH, FULL, TOMBSTONED, SUPERSEDED = 0, 1, 2, 3, 4, 5, 7, 8
local MAX_PERMITS = 64 -- driver.MaxPermits
local me, mykind, mylimit, weight, ttl = ARGV[6], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local owner, meta, myflags, queue, session = ARGV[11], ARGV[12], ARGV[13], ARGV[14] ~= '0', ARGV[15]
local plain = ARGV[14] == 'plain' or nil

-- A claim that is newest-only has an id with this ending (driver.MarkNewestOnly).
local function is_newest_only(who) return string.sub(who, -10) == 'newestonly' end
-- is_superseded tells of this claim, which waits in the queue or was promoted, whether it is newest-only and so is one that came later.
-- Those in the queue came later than one that was promoted.
local function is_superseded()
  if not is_newest_only(me) then return false end
  for _, other in ipairs(call('ZREVRANGE', QUEUE, 0, -1)) do
    if other == me then return false end
    if is_newest_only(other) then return true end
  end
  return false
end

-- The short way, for a quiet lock (see shared/state.lua): confirm a promotion, acquire a free lock, or join the queue.
if quiet and mykind == 'mutex' and not is_tombstoned(me) and not was_broken then
  local mytoken = next_token()
  if value == me and id == me and flags == 'c' then -- it was promoted
    if is_superseded() then return {SUPERSEDED} end
    call('PEXPIRE', LOCK, ttl)
    call('HSET', RECORD, 'token', text(mytoken), 'flags', myflags)
    call('HDEL', CLAIMS, me)
    return mytoken
  end
  -- If the lock is free for the queue: its first claims. The lock is the first one's.
  local front = not value and has_queue and not left_free and call('ZRANGE', QUEUE, 0, 1) or {}
  local first = front[1]
  local next_up = first == me
  if next_up and is_superseded() then return {SUPERSEDED} end
  if not value and (next_up or not has_queue) and not has_flag(flags, 'c') then
    local waited = next_up and call('HGET', CLAIMS, me)
    -- This comes first, since a server that is out of memory accepts no write but a removal as a script's first one.
    if next_up then call('HDEL', CLAIMS, me, '?' .. me) end
    if call('SET', LOCK, me, 'NX', 'PX', ttl) then
      if waited then myflags = cjson.decode(waited).flags end -- an operator may have asked it to release while it waited
      if next_up then
        call('ZREM', QUEUE, me)
        if not front[2] then call('HDEL', RECORD, 'line') end
      end
      call('HSET', RECORD, 'id', me, 'token', text(mytoken), 'flags', myflags, 'owner', owner, 'meta', meta, 'ttl', text(ttl))
      return mytoken
    end
    if waited then call('HSET', CLAIMS, me, waited) end -- a foreign client holds the lock, with an empty value
  end
  local waiters = has_queue and call('ZCARD', QUEUE) or 0
  local is_held = value and value == id and value ~= me
  -- A plain claim for which the lock was left free just now will come. One that has not come by then may be dead, so it is promoted on the
  -- long way.
  local is_left_free = first and first == left_for and math.abs(now - left_for_at) < SOON and not has_flag(flags, 'c')
  if (is_held or is_left_free) and queue and waiters < MAX_WAITERS and call('ZADD', QUEUE, 'NX', next_score(), me) == 1 then
    call('HSET', CLAIMS, me, cjson.encode({w = weight, ttl = ttl, owner = owner, meta = meta, since = text(now), flags = myflags,
      state = 'waiting', session = session, plain = plain}))
    if waiters == 0 then
      call('HSET', RECORD, 'line', '1')
      for _, key in ipairs({CLAIMS, QUEUE}) do call('PEXPIREAT', key, text(kept_until / 1000 - DAY)) end
    end
    if is_left_free then return {WAITING, -1, waiters + 1, 0} end
    local left, o = call('PTTL', LOCK), call('HMGET', RECORD, 'owner', 'meta', 'ttl')
    return {WAITING, left, waiters + 1, 0,
      {id, has_flag(flags, 'c') and '' or stored[2], o[1], o[2], o[3], stored[2], flags, '1', left}}
  end
end

-- The long way, for everything else.
--- include shared/notes.lua
--- include shared/foreign.lua
--- include shared/queue.lua
if was_broken then return {BROKEN} end
-- This comes before settle, so that this claim is not removed as one that did not answer a roll call.
local waits = is_queued(me)
if waits then call('HSET', CLAIMS, '?' .. me, text(now)) end
settle()
promote_next()

local function reply(...)
  save()
  return {...}
end

local function reply_grant(granted, permits)
  save()
  if permits then return {GRANTED, granted, table.concat(permits, ',')} end
  return granted
end

-- choose_permits returns the numbers of this claim's permits on a semaphore: the smallest that no holder has. It returns nil if the claim
-- is too heavy, or if there is a holder without numbers, as clients of an earlier version are: all clients keep the same rule.
local function choose_permits()
  if mykind ~= 'semaphore' or weight > MAX_PERMITS then return nil end
  local ids = call('ZRANGE', HOLDERS, 0, -1)
  local claims, taken, permits = #ids > 0 and call('HMGET', CLAIMS, unpack(ids)) or {}, {}, {}
  for i, who in ipairs(ids) do
    local c = claims[i] and cjson.decode(claims[i])
    if not c then return nil end
    if who ~= me and c.state ~= 'promoted' then
      if not c.permits and c.w <= MAX_PERMITS then return nil end
      for _, n in ipairs(c.permits or {}) do taken[n] = true end
    end
  end
  local n = 0
  while #permits < weight do
    if not taken[n] then permits[#permits + 1] = n end
    n = n + 1
  end
  return permits
end

-- grant grants this claim. The flags are an argument because a promoted claim may have been given flags since it joined the queue.
local function grant(itsflags)
  local permits
  if mykind == 'mutex' then
    if has_flag(flags, 'c') then call('HDEL', CLAIMS, me) end
    id, flags, held, token = me, itsflags, 'mutex', next_token()
    call('SET', LOCK, me, 'PX', ttl)
    call('HSET', RECORD, 'id', me, 'token', text(token), 'flags', flags, 'owner', owner, 'meta', meta, 'ttl', text(ttl))
  else
    draw_token()
    set_mark()
    permits = choose_permits()
    write_claim(me, {w = weight, ttl = ttl, owner = owner, meta = meta, since = text(now), token = text(token), flags = itsflags,
      state = 'granted', permits = permits})
    call('ZADD', HOLDERS, text(now + ttl * 1000), me)
  end
  return reply_grant(token, permits)
end

-- set_kind makes the lock one of this kind and limit.
local function set_kind(newkind, newlimit)
  kind, limit = newkind, newlimit
  if queue_state[1] ~= kind or queue_state[2] ~= text(limit) then call('HSET', RECORD, 'kind', kind, 'limit', text(limit)) end
  queue_state[1], queue_state[2] = kind, text(limit)
end

local function refuse(code, second)
  local a = {code, time_left(), second, (promoted or roll_call_end and roll_call_end > now) and 1 or 0}
  for _, s in ipairs(describe_holders()) do a[#a + 1] = s end
  save()
  return a
end

if held == 'mutex' and id == me then
  if has_flag(flags, 'b') then return reply(BROKEN) end
  if has_flag(flags, 'c') and is_superseded() then return reply(SUPERSEDED) end
  if has_flag(flags, 'c') then return grant((string.gsub(flags, 'c', ''))) end
  call('PEXPIRE', LOCK, ttl)
  return reply_grant(token)
end
if held == 'shared' and call('ZSCORE', HOLDERS, me) then
  local c = read_claim(me)
  if has_flag(c.flags or '', 'b') then return reply(BROKEN) end
  if c.state == 'promoted' and is_superseded() then return reply(SUPERSEDED) end
  if c.state == 'promoted' then return grant(c.flags) end
  call('ZADD', HOLDERS, text(now + ttl * 1000), me)
  return reply_grant(tonumber(c.token), c.permits)
end
local place = waits and waiters > 0 and call('ZRANK', QUEUE, me)
if place and is_superseded() then return reply(SUPERSEDED) end
if place then return refuse(WAITING, place + 1) end

if is_tombstoned(me) then return reply(TOMBSTONED) end
if held == 'mutex' or held == 'shared' or waiters > 0 then
  if kind ~= mykind or limit ~= mylimit then return reply(MISMATCH, kind, limit) end
end
-- The rule of the grant: the weight of all claims ahead, and the claim's own, must fit in the limit. All waiting claims
-- are ahead, and the first of them does not fit, or it would have been promoted. So any waiting claim is enough to
-- refuse.
local fits = waiters == 0 and (held == 'none' or held == 'shared' and mykind ~= 'mutex' and held_weight + weight <= limit)
if fits then
  if held == 'shared' and call('ZCARD', HOLDERS) >= MAX_HOLDERS then return reply(FULL, MAX_HOLDERS, 'hold it') end
  set_kind(mykind, mylimit)
  if kind ~= 'mutex' then set_mark() end
  held_weight = held_weight + weight
  return grant(myflags)
end
if not queue then return refuse(HELD, waiters) end
if waiters >= MAX_WAITERS then
  trim_queue()
  if waiters >= MAX_WAITERS then return reply(FULL, MAX_WAITERS, 'wait for it') end
end
if waiters == 0 then
  if held == 'foreign' then kind, limit = mykind, mylimit end
  set_kind(kind, limit)
  keys_added = true
end
call('ZADD', QUEUE, next_score(), me)
write_claim(me, {w = weight, ttl = ttl, owner = owner, meta = meta, since = text(now), flags = myflags, state = 'waiting',
  session = session, plain = plain})
waiters = waiters + 1
return refuse(WAITING, waiters)
