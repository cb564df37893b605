-- What the scripts on a lock with a queue share, if the lock is not quiet (see state.lua). It has to be included after state.lua, notes.lua
-- and foreign.lua.
--
-- A lock is granted by one rule: the weight of all claims ahead, plus a claim's own, fits in the limit. Holders are always ahead of
-- waiting claims. So it is enough to know the weight of all holders and the first claim in the queue.
--
-- A script calls settle first, and save last. It calls promote_next after its own work, or before it if the work is to acquire. No Redis
-- command is run that can be avoided: a handover costs as much as its commands.
--
-- Defines settle, promote_next, save; read_claim, write_claim, is_queued; remove_waiter, remove_holder, remove_mutex_holder,
-- clear_if_unheld, set_mark, draw_token, notify, trim_queue, add_tombstone, write_when_full; describe_holders, time_left; and:
--   kind, limit          of the lock
--   held                 'none', 'mutex', 'shared' (see set_mark) or 'foreign'
--   held_weight          of all holders of a read-write lock or semaphore, promoted claims included
--   waiters              how many claims wait
--   unanswered           a promoted claim did not confirm (see settle)
--   keys_added           keys were made that have no expiry yet
--   roll_call, roll_call_end   when a roll call began, and when it ends; nil if there is none
--   queue_state          the fields of the record as they were read
-- Most locks with an empty value do not exist, so state.lua has left the question to the long way.
if is_empty and call('EXISTS', LOCK) == 1 then value, left_free = '', false end
local queue_state = call('HMGET', RECORD, 'kind', 'limit', 'mark', 'sum', 'roll', 'rollend', 'noted')
local kind, limit, mark, held_weight = queue_state[1], tonumber(queue_state[2]), queue_state[3], tonumber(queue_state[4]) or 0
local roll_call, roll_call_end, notes_until = tonumber(queue_state[5]), tonumber(queue_state[6]), tonumber(queue_state[7])
local waiters = has_queue and call('ZCARD', QUEUE) or 0
local MAX_SCAN = 128 -- how many waiting claims one script looks at, at most
local held = 'foreign'
local unanswered, keys_added = false, false
local promoted = nil -- the confirm window of the claim that was promoted last, in ms
local moved = 0 -- by how many places promote_next has moved the queue on
local vacant = false -- a mutex's holder is gone; its fields are left for the next holder to overwrite

local function read_claim(who)
  local c = call('HGET', CLAIMS, who)
  return c and cjson.decode(c) or nil
end

local function write_claim(who, c) call('HSET', CLAIMS, who, cjson.encode(c)) end

-- notify sends a message to one client.
local function notify(session, message) call(PUBLISH, CHANNEL .. ':' .. session, message) end

local function remove_from_queue(who)
  waiters = waiters - call('ZREM', QUEUE, who)
  call('HDEL', CLAIMS, '?' .. who)
end

local function is_queued(who) return waiters > 0 and call('ZSCORE', QUEUE, who) end

-- remove_waiter removes a waiting claim.
local function remove_waiter(who)
  remove_from_queue(who)
  call('HDEL', CLAIMS, who)
end

-- remove_holder removes a holder of a read-write lock or semaphore.
local function remove_holder(who)
  local c = read_claim(who)
  if c then
    held_weight = held_weight - c.w
    unanswered = unanswered or c.state == 'promoted'
  end
  call('ZREM', HOLDERS, who)
  call('HDEL', CLAIMS, who)
end

-- clear_holders removes the mark and all holders under it.
local function clear_holders()
  call('DEL', HOLDERS)
  mark, held_weight = nil, 0
  call('HDEL', RECORD, 'mark', 'sum')
end

-- clear_if_unheld frees a shared lock that has no holder left, and reports whether it did.
local function clear_if_unheld()
  if call('ZCARD', HOLDERS) > 0 then return false end
  call('DEL', LOCK)
  clear_holders()
  held = 'none'
  return true
end

-- extend_lock makes the lock's key expire just after the last of its holders.
local function extend_lock()
  local last = call('ZREVRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  if last[1] then call('PEXPIREAT', LOCK, text(math.ceil(last[2] / 1000) + 1)) end
end

-- write_when_full makes a server that is out of memory accept the writes that follow. Such a server refuses a script's first write,
-- unless the command cannot take memory. So this removes a field that does not exist.
local function write_when_full() call('HDEL', RECORD, 'none') end

-- add_tombstone makes sure that a released claim is not made by a request that arrives later. The last hundred tombstones are kept.
local function add_tombstone(who)
  write_when_full()
  call('HSET', RECORD, 'bar', string.sub((tombstones or '') .. ' ' .. who, -2700))
end

-- set_mark makes the lock a shared one: its value is a new mark, under which several claims can hold it. Each mark is
-- another one, so that holders of an earlier use, which ended with its key, never count again. The expiry is short
-- because save sets the right one.
local function set_mark()
  if held == 'shared' then return end
  mark = 'holdfast:' .. kind .. ':' .. text(limit) .. ':' .. text(now)
  call('SET', LOCK, mark, 'PX', 1000)
  call('HSET', RECORD, 'mark', mark)
  held, held_weight, keys_added = 'shared', 0, true
end

-- draw_token draws a token by the same rule as acquire.lua.
local function draw_token()
  token = next_token()
  call('HSET', RECORD, 'token', text(token))
end

local function remove_mutex_holder()
  if has_flag(flags, 'c') then call('HDEL', CLAIMS, id) end
  held, id, flags, vacant = 'none', nil, '', true
end

-- promote takes a claim from the queue, reserves the lock for it until the confirm window ends, and notifies its client. The window of a
-- plain claim began when the lock was left free for it. But a foreign client may have had the lock since then, and the claim polls. So
-- it has a quarter of the window at least.
local function promote(who, c)
  remove_from_queue(who)
  local window = math.min(WINDOW, c.ttl)
  if left_for == who then window = math.floor(math.max(window - math.max(0, now - left_for_at) / 1000, window / 4)) end
  if kind == 'mutex' then
    id, flags, held = who, 'c' .. c.flags, 'mutex'
    call('SET', LOCK, who, 'PX', window)
    call('HSET', RECORD, 'id', who, 'flags', flags, 'owner', c.owner, 'meta', c.meta, 'ttl', c.ttl)
  else
    set_mark()
    c.state = 'promoted'
    write_claim(who, c)
    call('ZADD', HOLDERS, text(now + window * 1000), who)
    held_weight = held_weight + c.w
  end
  promoted = window
  notify(c.session, 'turn ' .. who)
end

-- is_alive reports whether a waiting claim has given a sign of life within its TTL.
local function is_alive(who, c)
  return (call('HGET', CLAIMS, '?' .. who) or c.since) + c.ttl * 1000 >= now
end

-- notify_of_turn notifies the first two waiters that the lock is left to foreign clients: they run their scripts when that has ended. The
-- first then acquires the lock. If its client is dead, the second one's script promotes it, so that its confirm window begins.
local function notify_of_turn()
  for _, who in ipairs(call('ZRANGE', QUEUE, 0, 1)) do
    local c = read_claim(who)
    if c then notify(c.session, 'next ' .. who .. ' ' .. math.ceil((turn - now) / 1000)) end
  end
end

-- notify_next notifies the next claim after those that were promoted, and the claims that have become near, when to look again, unless
-- they joined the queue so recently that they run their scripts again soon anyway.
local function notify_next()
  for i, who in ipairs(call('ZRANGE', QUEUE, 0, NEAR - 1)) do
    local c = (i == 1 or i > NEAR - moved) and read_claim(who)
    if c and now - c.since > SOON then notify(c.session, 'next ' .. who .. ' ' .. promoted) end
  end
end

-- promote_next promotes the claims whose turn has come, and notifies the next ones.
local function promote_next()
  if held == 'foreign' or kind == 'mutex' and held ~= 'none' then return end
  local removed = 0
  while waiters > 0 do
    local who = call('ZRANGE', QUEUE, 0, 0)[1]
    if not who then return end
    local c = read_claim(who)
    if not c or not is_alive(who, c) then
      if removed == MAX_SCAN then -- the next script goes on from here, and all waiting claims are asked to send one
        call(PUBLISH, CHANNEL, 'roll 0')
        return
      end
      removed, moved = removed + 1, moved + 1
      remove_waiter(who)
    elseif left_free then
      notify_of_turn()
      return
    elseif kind == 'mutex' and held ~= 'none' or kind ~= 'mutex' and (held_weight + c.w > limit or call('ZCARD', HOLDERS) >= MAX_HOLDERS) then
      if promoted then notify_next() end
      return
    else
      promote(who, c)
      moved = moved + 1
    end
  end
end

-- read_waiters reads the claims with these ids, and the last sign of life of each.
local function read_waiters(ids)
  local signs = {}
  for i, who in ipairs(ids) do signs[i] = '?' .. who end
  return call('HMGET', CLAIMS, unpack(ids)), call('HMGET', CLAIMS, unpack(signs))
end

-- trim_queue removes dead claims from a queue that is full, so that they keep no live claim out. It looks at a part of the queue, and only once
-- per confirm window: a claim that comes in between is refused at once.
local function trim_queue()
  write_when_full()
  local h = call('HMGET', RECORD, 'swept', 'sweptto')
  local last, from = tonumber(h[1]), tonumber(h[2]) or 0
  if last and last <= now and now < last + WINDOW * 1000 then return end
  if from >= waiters then from = 0 end
  local ids = call('ZRANGE', QUEUE, from, from + MAX_SCAN - 1)
  local claims, signs = read_waiters(ids)
  for i, who in ipairs(ids) do
    local c = claims[i] and cjson.decode(claims[i])
    if c and (signs[i] or c.since) + c.ttl * 1000 >= now then
      from = from + 1
    else
      remove_waiter(who)
    end
  end
  call('HSET', RECORD, 'swept', text(now), 'sweptto', from)
end

local function end_roll_call()
  call('HDEL', RECORD, 'roll', 'rollend', 'rollat')
  roll_call, roll_call_end = nil, nil
end

-- remove_silent removes, after a roll call, the claims that gave no sign of life. Each script looks at a part of the queue.
local function remove_silent()
  local at = call('HGET', RECORD, 'rollat')
  local found = call('ZRANGEBYSCORE', QUEUE, at and '(' .. at or '-inf', '(' .. text(roll_call), 'WITHSCORES', 'LIMIT', 0, MAX_SCAN)
  local ids = {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  if #ids > 0 then
    local _, signs = read_waiters(ids)
    for i, who in ipairs(ids) do
      if (tonumber(signs[i]) or 0) < roll_call then remove_waiter(who) end
    end
  end
  if #ids == MAX_SCAN then
    call('HSET', RECORD, 'rollat', text(tonumber(found[#found])))
  else
    end_roll_call()
  end
end

-- settle finds out how the lock is held, and removes what has expired.
--
-- A promoted claim that did not confirm shows that its client died while it waited; other clients may have died with it. So all waiting
-- claims are asked for a sign of life (a roll call), and those that give none are removed together: ten dead ones cost little more than
-- one.
local function settle()
  if not value then
    held = 'none'
  elseif value == id then
    held = 'mutex'
  elseif value == mark then
    held = 'shared'
  end
  -- The record names a mutex's holder or a promoted claim, but the lock's key has expired or has another value.
  if held ~= 'mutex' and id then
    unanswered = has_flag(flags, 'c')
    call('HDEL', RECORD, 'id', 'flags')
    call('HDEL', CLAIMS, id)
    if left_for == id then -- its turn has passed: in its next turn it has the whole confirm window again
      call('HDEL', RECORD, 'left_for')
      left_for = nil
    end
    id, flags = nil, ''
  end
  if held == 'shared' then
    for _, who in ipairs(call('ZRANGEBYSCORE', HOLDERS, '-inf', text(now))) do remove_holder(who) end
    if not clear_if_unheld() then extend_lock() end
  elseif mark then
    for _, who in ipairs(call('ZRANGE', HOLDERS, 0, -1)) do remove_holder(who) end
    clear_holders()
  end
  if held == 'mutex' then kind, limit = 'mutex', 1 end
  if held ~= 'shared' then held_weight = 0 end
  if roll_call_end and roll_call > now then end_roll_call() end -- the server's clock was set back
  if unanswered and waiters > 0 and not roll_call_end then
    local spread = WINDOW * math.floor(waiters / 64) -- the answers of many at once would keep the server busy
    roll_call, roll_call_end = now, now + (WINDOW + spread) * 1000
    call('HSET', RECORD, 'roll', text(roll_call), 'rollend', text(roll_call_end))
    call(PUBLISH, CHANNEL, 'roll ' .. spread)
  elseif roll_call_end and now > roll_call_end then
    remove_silent()
  end
end

-- save writes what is not written yet, and moves the expiries. On the long way every script ends with it.
local function save()
  if held == 'shared' and not clear_if_unheld() then
    extend_lock()
    call('HSET', RECORD, 'sum', text(held_weight))
  end
  if vacant and held ~= 'mutex' then
    if held == 'none' then call('DEL', LOCK) end
    call('HDEL', RECORD, 'id', 'flags')
  end
  if notes_until and notes_until < now then
    clear_notes(RECORD, now)
    call('HDEL', RECORD, 'notes', 'noted', 'unsure')
  end
  -- Only a lock without a mark and without a roll call may be quiet: see state.lua.
  local calm = queue_state[1] == 'mutex' and not (mark or roll_call_end)
  if calm ~= (stored[7] == '1') then
    if calm then call('HSET', RECORD, 'quiet', '1') else call('HDEL', RECORD, 'quiet') end
  end
  if waiters > 0 then
    if not has_queue then call('HSET', RECORD, 'line', '1') end
  elseif has_queue then
    call('HDEL', RECORD, 'line')
  end
  if keys_added or kept_until < now + KEEP * 1000 then
    local kept = math.max(math.floor(now / 1000 + KEEP + HOUR), math.floor(kept_until / 1000)) -- see raise_token.lua
    call('PEXPIREAT', RECORD, text(kept))
    for i = 3, 5 do call('PEXPIREAT', KEYS[i], text(kept - DAY)) end
    call('HSET', RECORD, 'kept', text(kept * 1000))
  end
end

-- describe_holders describes up to four holders, for a claim that is refused. Each is {id, token, owner, meta, TTL in ms, since, flags,
-- weight, ms left}; readHolders in replies.go reads them.
local function describe_holders()
  local s = {}
  if held == 'foreign' then
    local what, digest = describe_foreign(LOCK)
    s[1] = {digest, '', what, '', '', '', 'f', '1', call('PTTL', LOCK)}
  elseif held == 'mutex' then
    local o = call('HMGET', RECORD, 'owner', 'meta', 'ttl')
    s[1] = {id, has_flag(flags, 'c') and '' or text(token), o[1], o[2], o[3], text(token), flags, '1', call('PTTL', LOCK)}
  else
    for _, who in ipairs(call('ZRANGE', HOLDERS, 0, 3)) do
      local c = read_claim(who)
      if c then s[#s + 1] = {who, c.token or '', c.owner, c.meta, text(c.ttl), c.since, c.flags or '', text(c.w), 0} end
    end
  end
  return s
end

-- time_left is the time in ms until the first holder expires, the turn of foreign clients ends, or the roll call ends; less than 0 if that
-- is not known.
local function time_left()
  local ms
  if left_free then
    ms = math.ceil((turn - now) / 1000)
  elseif held == 'shared' then
    local first = call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')
    ms = math.max(0, math.ceil((first[2] - now) / 1000))
  else
    ms = call('PTTL', LOCK)
  end
  if roll_call_end and roll_call_end > now and ms >= 0 then ms = math.min(ms, math.ceil((roll_call_end - now) / 1000)) end
  return ms
end
