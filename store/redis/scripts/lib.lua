-- What the steps on a lock with a line share, where it is not quiet. A lock is granted by one rule: the weight of all
-- claims ahead, plus a claim's own, fits in the limit. Holders always stand ahead of those who wait, so it is enough to
-- know the weight of all holders and the first in line.
--
-- Every call that can be spared is: they are what a hand-over costs.
local r = call('HMGET', RECORD, 'kind', 'limit', 'mark', 'sum', 'roll', 'rollend', 'out')
local kind, limit, mark, sum = r[1], tonumber(r[2]), r[3], tonumber(r[4]) or 0
local roll, rollend, out = tonumber(r[5]), tonumber(r[6]), r[7]
local waiting = inuse and call('ZCARD', LINE) or 0
local held = 'foreign' -- or none, mutex, shared
local freed, called, unanswered = false, false, false
local vacant = false -- a mutex's holder has gone; what is written of it is left for the next one to write over
local fresh = false -- keys came to be that have no end yet

local function claim(who)
  local c = call('HGET', CLAIMS, who)
  return c and cjson.decode(c) or nil
end

local function put(who, c) call('HSET', CLAIMS, who, cjson.encode(c)) end

local function tell(session, what) call(PUBLISH, CHANNEL .. ':' .. session, what) end

-- leaveline takes a claim out of the line.
local function leaveline(who)
  waiting = waiting - call('ZREM', LINE, who)
  call('HDEL', CLAIMS, '?' .. who)
end

-- inline tells whether a claim stands in line.
local function inline(who) return waiting > 0 and call('ZSCORE', LINE, who) end

-- forget removes a waiting claim.
local function forget(who)
  leaveline(who)
  call('HDEL', CLAIMS, who)
end

-- drop removes a holder that is no mutex's.
local function drop(who)
  local c = claim(who)
  if c then
    sum = sum - c.w
    unanswered = unanswered or c.state == 'called'
  end
  call('ZREM', HOLDERS, who)
  call('HDEL', CLAIMS, who)
  freed = true
end

-- empty ends the time of a mark: nobody holds the lock under it any more.
local function empty()
  call('DEL', HOLDERS)
  mark, sum = nil, 0
  call('HDEL', RECORD, 'mark', 'sum')
end

-- ends makes the lock last as long as the last of its holders.
local function ends()
  local last = call('ZREVRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  if last[1] then call('PEXPIREAT', LOCK, text(math.ceil(last[2] / 1000) + 1)) end
end

-- anyway has a server that is full take what follows: it refuses only the first write of a script, and none that can't take room.
local function anyway() call('HDEL', RECORD, 'none') end

-- bar keeps a released claim from being made by a request that was overtaken. The last hundred are remembered.
local function bar(who)
  anyway()
  call('HSET', RECORD, 'bar', string.sub((bars or '') .. ' ' .. who, -2700))
end

-- carry makes the lock carry a mark.
local function carry()
  if held == 'shared' then return end
  mark = 'holdfast:' .. kind .. ':' .. text(limit) .. ':' .. text(now)
  call('SET', LOCK, mark, 'PX', 1000)
  call('HSET', RECORD, 'mark', mark)
  held, sum, fresh = 'shared', 0, true
end

local function draw()
  token = math.max(token + 1, now)
  call('HSET', RECORD, 'token', text(token))
end

-- go takes the mutex from its holder.
local function go()
  if has(flags, 'c') then call('HDEL', CLAIMS, id) end
  held, id, flags, freed, vacant = 'none', nil, '', true, true
end

-- callin calls the first in line: it keeps a place for it until the confirm window is over.
local function callin(who, c)
  leaveline(who)
  local window = math.min(WINDOW, c.ttl)
  if kind == 'mutex' then
    id, flags, held = who, 'c' .. c.flags, 'mutex'
    call('SET', LOCK, who, 'PX', window)
    call('HSET', RECORD, 'id', who, 'flags', flags, 'owner', c.owner, 'meta', c.meta, 'ttl', c.ttl)
  else
    carry()
    c.state = 'called'
    put(who, c)
    call('ZADD', HOLDERS, text(now + window * 1000), who)
    sum = sum + c.w
  end
  called = true
  tell(c.session, 'call ' .. who)
end

-- alive tells whether a waiting claim has given a sign of life in its time.
local function alive(who, c)
  return (call('HGET', CLAIMS, '?' .. who) or c.since) + c.ttl * 1000 >= now
end

-- advance calls those whose turn has come. The next after them is told when to look, unless it soon does by itself, and nobody
-- else wakes.
local function advance()
  if held == 'foreign' or kind == 'mutex' and held ~= 'none' then return end
  while waiting > 0 do
    local who = call('ZRANGE', LINE, 0, 0)[1]
    if not who then return end
    local c = claim(who)
    if not c or not alive(who, c) then
      forget(who)
    elseif kind == 'mutex' and held ~= 'none' or kind ~= 'mutex' and (sum + c.w > limit or call('ZCARD', HOLDERS) >= MAXHOLDERS) then
      if called and now - c.since > SOON then tell(c.session, 'next ' .. who .. ' ' .. WINDOW) end
      return
    else
      callin(who, c)
    end
  end
end

-- settle finds out how the lock stands, and removes what is over.
--
-- A claim that was called and did not answer tells that its client died while it waited, and then others may have died
-- with it. So all in line are asked to show themselves, and those who don't go together: ten dead ones in line cost
-- little more than one.
local function settle()
  if not value then
    held = 'none'
  elseif value == id then
    held = 'mutex'
  elseif value == mark then
    held = 'shared'
  end
  if held ~= 'mutex' and id then
    unanswered = has(flags, 'c')
    call('HDEL', RECORD, 'id', 'flags')
    call('HDEL', CLAIMS, id)
    id, flags = nil, ''
  end
  if held == 'shared' then
    for _, who in ipairs(call('ZRANGEBYSCORE', HOLDERS, '-inf', text(now))) do drop(who) end
    if call('ZCARD', HOLDERS) == 0 then
      call('DEL', LOCK)
      empty()
      held = 'none'
    else
      ends()
    end
  elseif mark then
    for _, who in ipairs(call('ZRANGE', HOLDERS, 0, -1)) do drop(who) end
    empty()
  end
  if held == 'mutex' then kind, limit = 'mutex', 1 end
  if held ~= 'shared' then sum = 0 end
  if unanswered and waiting > 0 and not rollend then
    roll, rollend = now, now + WINDOW * 1000 * (1 + math.floor(waiting / 64))
    call('HSET', RECORD, 'roll', text(roll), 'rollend', text(rollend))
    call(PUBLISH, CHANNEL, 'roll')
  elseif rollend and now > rollend then
    for _, who in ipairs(call('ZRANGEBYSCORE', LINE, '-inf', '(' .. text(roll))) do
      if (tonumber(call('HGET', CLAIMS, '?' .. who)) or 0) < roll then forget(who) end
    end
    call('HDEL', RECORD, 'roll', 'rollend')
    roll, rollend = nil, nil
  end
end

-- finish leaves everything in order. Every step ends with it.
local function finish()
  if held == 'shared' then
    if call('ZCARD', HOLDERS) == 0 then
      call('DEL', LOCK)
      empty()
      held = 'none'
    else
      ends()
      call('HSET', RECORD, 'sum', text(sum))
    end
  end
  if vacant and held ~= 'mutex' then
    if held == 'none' then call('DEL', LOCK) end
    call('HDEL', RECORD, 'id', 'flags')
  end
  if out and call('EXISTS', CLAIMS) == 0 then -- those who were broken in line have been told
    call('HDEL', RECORD, 'out')
    out = nil
  end
  local calm = r[1] == 'mutex' and not (mark or rollend or out)
  if calm ~= (h[7] == '1') then
    if calm then call('HSET', RECORD, 'quiet', '1') else call('HDEL', RECORD, 'quiet') end
  end
  if waiting > 0 then
    if not inuse then call('HSET', RECORD, 'line', '1') end
  else
    if inuse then call('HDEL', RECORD, 'line') end
    if freed and held == 'none' then call(PUBLISH, CHANNEL, 'free') end
  end
  if fresh or kept < now + KEEP * 1000 then
    kept = math.floor(now / 1000 + 2 * KEEP)
    for i = 2, 5 do call('PEXPIREAT', KEYS[i], text(kept)) end
    call('HSET', RECORD, 'kept', text(kept * 1000))
  end
end

-- shown is what a refused claim is told of the holders, a few of them.
local function shown()
  local s = {}
  if held == 'foreign' then
    local what = type(value) == 'string' and value or call('TYPE', LOCK).ok
    s[1] = {'', '', string.sub(what, 1, 256), '', '', '', 'f', '1', call('PTTL', LOCK)}
  elseif held == 'mutex' then
    local o = call('HMGET', RECORD, 'owner', 'meta', 'ttl')
    s[1] = {id, has(flags, 'c') and '' or text(token), o[1], o[2], o[3], text(token), flags, '1', call('PTTL', LOCK)}
  else
    for _, who in ipairs(call('ZRANGE', HOLDERS, 0, 3)) do
      local c = claim(who)
      if c then s[#s + 1] = {who, c.token or '', c.owner, c.meta, text(c.ttl), c.since, c.flags or '', text(c.w), 0} end
    end
  end
  return s
end

-- left is how long it will be until somebody who holds the lock now has fallen silent, in ms; less than 0: not known.
local function left()
  local ms
  if held == 'shared' then
    local first = call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')
    ms = math.max(0, math.ceil((first[2] - now) / 1000))
  else
    ms = call('PTTL', LOCK)
  end
  if rollend and ms >= 0 then ms = math.min(ms, math.ceil((rollend - now) / 1000)) end
  return ms
end
