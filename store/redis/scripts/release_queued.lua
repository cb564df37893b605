-- Releases a claim on a lock with a queue, whether it holds the lock, was promoted, or waits. The claims whose turn has come are then
-- promoted.
--
-- KEYS  as in shared/state.lua
-- ARGV  1-5 as in shared/state.lua  6 claim id  7 '1': a request to make the claim may still arrive, and must be refused then
--       8 from a Redlock that gives back a round: its number; a later round keeps what it was granted
--
-- Replies DONE; BROKEN: an operator has broken the claim; NOT_FOUND: there is no such claim, and no operator has broken it;
-- MAYBE_BROKEN: there is no such claim, and so many were broken that nobody knows whether this one was
--- include shared/state.lua
local NOT_FOUND, DONE, BROKEN, MAYBE_BROKEN = 0, 1, 2, 8
local me = ARGV[6]
-- A Redlock gives back a round that failed. If the claim was granted in a later round meanwhile, this request is late,
-- and that grant must stay.
if ARGV[8] and ARGV[8] + 0 < (tonumber(call('HGET', RECORD, 'ballot')) or 0) then return NOT_FOUND end

-- The short way, for the holder of a quiet lock. If the first waiting claim is alive, it is promoted as promote and promote_next in
-- shared/queue.lua do it.
if quiet and value == me and id == me and not has_flag(flags, 'c') and ARGV[7] ~= '1' then
  if not has_queue then
    call('DEL', LOCK)
    call(PUBLISH, CHANNEL, 'free')
    return DONE
  end
  local first = call('ZRANGE', QUEUE, 0, 1, 'WITHSCORES')
  local who, after = first[1], first[3]
  local found = who and call('HMGET', CLAIMS, who, '?' .. who) or {}
  local c, sign = found[1] and cjson.decode(found[1]), found[2]
  if c and (sign or c.since) + c.ttl * 1000 >= now then
    if c.plain then
      -- It keeps its place, in which no claim overtakes it. But the lock is free until it comes, so that clients
      -- which know no queue have their turns, too.
      call('DEL', LOCK)
    else
      call('ZREM', QUEUE, who)
      if sign then call('HDEL', CLAIMS, '?' .. who) end
      -- The lock's key gets the promoted claim's id at once, so that no other client can take the lock in between. It
      -- expires with the confirm window, so that a dead claim does not keep the lock for a TTL.
      call('SET', LOCK, who, 'PX', math.min(WINDOW, c.ttl))
      call('HSET', RECORD, 'id', who, 'flags', 'c' .. c.flags, 'owner', c.owner, 'meta', c.meta, 'ttl', c.ttl)
      if not after then call('HDEL', RECORD, 'line') end
    end
    call(PUBLISH, CHANNEL .. ':' .. c.session, 'call ' .. who)
    local n = after and now - first[4] > SOON and call('HGET', CLAIMS, after)
    if n then call(PUBLISH, CHANNEL .. ':' .. cjson.decode(n).session, 'next ' .. after .. ' ' .. WINDOW) end
    return DONE
  end
end

-- The long way, for everything else.
--- include shared/notes.lua
--- include shared/foreign.lua
--- include shared/queue.lua
settle()
local found = true
if held == 'mutex' and id == me then
  remove_mutex_holder()
elseif held == 'shared' and call('ZSCORE', HOLDERS, me) then
  remove_holder(me)
  clear_if_unheld()
elseif is_queued(me) then
  remove_waiter(me)
else
  found = false
end
if ARGV[7] == '1' then add_tombstone(me) end
promote_next()
save()
if found then return DONE end
if was_broken then return BROKEN end
return (tonumber(call('HGET', RECORD, 'unsure')) or 0) > now and MAYBE_BROKEN or NOT_FOUND
