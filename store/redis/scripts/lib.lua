-- What the steps on a lock with a line share, where it is not quiet. A lock is granted by one rule: the weight of all
-- claims ahead, plus a claim's own, fits in the limit. Holders always stand ahead of those who wait, so it is enough to
-- know the weight of all holders and the first in line.
--
-- Every call that can be spared is: they are what a hand-over costs.
local r = call('HMGET', RECORD, 'kind', 'limit', 'mark', 'sum', 'roll', 'rollend', 'noted')
local kind, limit, mark, sum = r[1], tonumber(r[2]), r[3], tonumber(r[4]) or 0
local roll, rollend, noted = tonumber(r[5]), tonumber(r[6]), tonumber(r[7])
local waiting = inuse and call('ZCARD', LINE) or 0
local STEP = 128 -- of how many in line a step looks at, at most
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
  local over = 0
  while waiting > 0 do
    local who = call('ZRANGE', LINE, 0, 0)[1]
    if not who then return end
    local c = claim(who)
    if not c or not alive(who, c) then
      if over == STEP then -- the rest is for whoever comes next
        call(PUBLISH, CHANNEL, 'roll 0')
        return
      end
      over = over + 1
      forget(who)
    elseif kind == 'mutex' and held ~= 'none' or kind ~= 'mutex' and (sum + c.w > limit or call('ZCARD', HOLDERS) >= MAXHOLDERS) then
      if called and now - c.since > SOON then tell(c.session, 'next ' .. who .. ' ' .. WINDOW) end
      return
    else
      callin(who, c)
    end
  end
end

-- some gives the claims, and the signs of life, of some in line.
local function some(who)
  local signs = {}
  for i, one in ipairs(who) do signs[i] = '?' .. one end
  return call('HMGET', CLAIMS, unpack(who)), call('HMGET', CLAIMS, unpack(signs))
end

-- trim looks for dead ones in a line that is full, so that they keep nobody out: a part of the line at a time, and once in a
-- confirm window. Whoever comes in between is refused at no cost.
local function trim()
  anyway()
  local h = call('HMGET', RECORD, 'swept', 'sweptto')
  local last, from = tonumber(h[1]), tonumber(h[2]) or 0
  if last and last <= now and now < last + WINDOW * 1000 then return end
  if from >= waiting then from = 0 end
  local who = call('ZRANGE', LINE, from, from + STEP - 1)
  local claims, signs = some(who)
  for i, one in ipairs(who) do
    local c = claims[i] and cjson.decode(claims[i])
    if c and (signs[i] or c.since) + c.ttl * 1000 >= now then
      from = from + 1
    else
      forget(one)
    end
  end
  call('HSET', RECORD, 'swept', text(now), 'sweptto', from)
end

-- judge removes, when the time of a roll is over, those that did not show themselves: a part of the line in each step.
local function judge()
  local at = call('HGET', RECORD, 'rollat')
  local found = call('ZRANGEBYSCORE', LINE, at and '(' .. at or '-inf', '(' .. text(roll), 'WITHSCORES', 'LIMIT', 0, STEP)
  local who = {}
  for i = 1, #found, 2 do who[#who + 1] = found[i] end
  if #who > 0 then
    local _, signs = some(who)
    for i, one in ipairs(who) do
      if (tonumber(signs[i]) or 0) < roll then forget(one) end
    end
  end
  if #who == STEP then
    call('HSET', RECORD, 'rollat', text(tonumber(found[#found])))
  else
    call('HDEL', RECORD, 'roll', 'rollend', 'rollat')
    roll, rollend = nil, nil
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
  if rollend and roll > now then -- the server's clock was set back
    call('HDEL', RECORD, 'roll', 'rollend', 'rollat')
    roll, rollend = nil, nil
  end
  if unanswered and waiting > 0 and not rollend then
    local more = WINDOW * math.floor(waiting / 64) -- of many all at once would keep the server busy
    roll, rollend = now, now + (WINDOW + more) * 1000
    call('HSET', RECORD, 'roll', text(roll), 'rollend', text(rollend))
    call(PUBLISH, CHANNEL, 'roll ' .. more)
  elseif rollend and now > rollend then
    judge()
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
  if noted and noted < now then
    clearnotes(RECORD, now)
    call('HDEL', RECORD, 'notes', 'noted', 'unsure')
  end
  local calm = r[1] == 'mutex' and not (mark or rollend)
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
    kept = math.floor(now / 1000 + KEEP + HOUR)
    call('PEXPIREAT', RECORD, text(kept))
    for i = 3, 5 do call('PEXPIREAT', KEYS[i], text(kept - DAY)) end
    call('HSET', RECORD, 'kept', text(kept * 1000))
  end
end

-- shown is what a refused claim is told of the holders, a few of them.
local function shown()
  local s = {}
  if held == 'foreign' then
    local what, digest = foreign(LOCK)
    s[1] = {digest, '', what, '', '', '', 'f', '1', call('PTTL', LOCK)}
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
  if rollend and rollend > now and ms >= 0 then ms = math.min(ms, math.ceil((rollend - now) / 1000)) end
  return ms
end
