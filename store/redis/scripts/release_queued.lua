-- Releases a claim on a lock with a queue, whether it holds the lock, was promoted, or waits. The claims whose turn has come are then
-- promoted.
--
-- KEYS  as in shared/state.lua
-- ARGV  1-5 as in shared/state.lua  6 claim id  7 '1': a request to make the claim may still arrive, and must be refused then
--       8 for how long the lock is left to foreign clients when their turn has come, in ms; 0: they have none
--       9 from a Redlock that gives back a round: its number; a later round keeps what it was granted
--
-- Replies DONE; BROKEN: an operator has broken the claim; NOT_FOUND: there is no such claim, and no operator has broken it;
-- MAYBE_BROKEN: there is no such claim, and so many were broken that nobody knows whether this one was
--- include shared/state.lua
local NOT_FOUND, DONE, BROKEN, MAYBE_BROKEN = 0, 1, 2, 8
local me, turn_time = ARGV[6], tonumber(ARGV[8]) or 0
-- A Redlock gives back a round that failed. If the claim was granted in a later round meanwhile, this request is late,
-- and that grant must stay.
if ARGV[9] and ARGV[9] + 0 < (tonumber(call('HGET', RECORD, 'ballot')) or 0) then return NOT_FOUND end

-- Foreign clients poll, and a lock that is handed over from claim to claim is never free for them. So a release that would hand it over
-- leaves it free for a while, if it was not free for MAX_BUSY and the client wants that (ARGV[8]). The queue keeps its order, and no claim
-- acquires the lock meanwhile (see left_free).
-- The field turn of the record is "TIME VALUE": when the lock was last free, which counts as long as it has that value. A hand-over
-- passes the time on to the next value. A value that it does not name was set when the lock was free: a claim's when its token was
-- drawn, a mark at the time with which it ends. While the lock is left free, TIME is the end of that, and there is no VALUE.
local MAX_BUSY = 1000000 -- in microseconds
local is_noted = turn and turn_value == value
local last_free = math.min(is_noted and turn or value ~= id and tonumber(string.match(tostring(value), '%d+$')) or token, now)
local turn_came = turn_time > 0 and has_queue and value and now - last_free > MAX_BUSY
local function note_last_free(next_value)
  if turn_time > 0 or is_noted then call('HSET', RECORD, 'turn', text(last_free) .. ' ' .. next_value) end
end

-- The shortest way, for a holder behind which nobody waits: see release.lua.
local is_holder = value == me and id == me and not has_flag(flags, 'c') and ARGV[7] ~= '1'
if is_holder and not has_queue then
  call('DEL', LOCK)
  return DONE
end

-- The short way, for the holder of a quiet lock. If the first waiting claim is alive, and so is the one behind it, which looks whether the
-- first one comes, it is promoted as promote and promote_next in shared/queue.lua do it.
if quiet and is_holder and not turn_came then
  -- read_alive returns a waiting claim and its last sign of life, or nil if it gave none within its TTL.
  local function read_alive(who)
    local found = call('HMGET', CLAIMS, who, '?' .. who)
    local c, sign = found[1] and cjson.decode(found[1]), found[2]
    if c and (sign or c.since) + c.ttl * 1000 >= now then return c, sign end
  end
  local first = call('ZRANGE', QUEUE, 0, NEAR - 1, 'WITHSCORES')
  local who, after, near = first[1], first[3], first[2 * NEAR - 1]
  local c, sign
  if who then c, sign = read_alive(who) end
  local is_after_due, is_near_due = after and now - first[4] > SOON, near and now - first[2 * NEAR] > SOON
  local n = is_after_due and read_alive(after)
  if c and (n or not is_after_due) then
    local window = math.min(WINDOW, c.ttl)
    if c.plain then
      -- It keeps its place, in which no claim overtakes it. But the lock is free until it comes, so that clients
      -- which know no queue have their turns, too. If it does not come, the next script promotes it: see promote.
      call('DEL', LOCK)
      call('HSET', RECORD, 'left_for', text(now) .. ' ' .. who)
    else
      call('ZREM', QUEUE, who)
      if sign then call('HDEL', CLAIMS, '?' .. who) end
      -- The lock's key gets the promoted claim's id at once, so that no other client can take the lock in between. It
      -- expires with the confirm window, so that a dead claim does not keep the lock for a TTL.
      call('SET', LOCK, who, 'PX', window)
      call('HSET', RECORD, 'id', who, 'flags', 'c' .. c.flags, 'owner', c.owner, 'meta', c.meta, 'ttl', c.ttl)
      if not after then call('HDEL', RECORD, 'line') end
    end
    note_last_free(who)
    call(PUBLISH, CHANNEL .. ':' .. c.session, 'turn ' .. who)
    local wait = c.plain and math.floor(window * 3 / 4) or window
    if n then call(PUBLISH, CHANNEL .. ':' .. n.session, 'next ' .. after .. ' ' .. wait) end
    n = is_near_due and read_alive(near)
    if n then call(PUBLISH, CHANNEL .. ':' .. n.session, 'next ' .. near .. ' ' .. wait) end
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
elseif held == 'foreign' and value == me then
  -- The record alone was evicted. Only a mutex has a claim's id as its value. The queue may have stayed.
  call('DEL', LOCK)
  kind, limit, held, waiters = 'mutex', 1, 'none', call('ZCARD', QUEUE)
  call('HSET', RECORD, 'kind', kind, 'limit', limit)
  queue_state[1] = kind
elseif is_queued(me) then
  remove_waiter(me)
else
  found = false
end
if ARGV[7] == '1' then add_tombstone(me) end
if turn_came and held == 'none' and waiters > 0 then
  left_free, turn = true, now + turn_time * 1000
  write_when_full()
  call('HSET', RECORD, 'turn', text(turn) .. ' ')
end
promote_next()
if promoted then note_last_free(kind == 'mutex' and id or mark) end
save()
if found then return DONE end
if was_broken then return BROKEN end
return (tonumber(call('HGET', RECORD, 'unsure')) or 0) > now and MAYBE_BROKEN or NOT_FOUND
