-- The same, where the lock is not quiet.
if ended then return {2} end
local stands = inline(me)
if stands then call('HSET', CLAIMS, '?' .. me, text(now)) end
settle()
advance()

local function answer(...)
  finish()
  return {...}
end

local function grant(token)
  finish()
  return token
end

-- granted grants the claim under these flags: those of a claim that was called have come with it.
local function granted(itsflags)
  if mykind == 'mutex' then
    if has(flags, 'c') then call('HDEL', CLAIMS, me) end
    id, flags, held, token = me, itsflags, 'mutex', math.max(token + 1, now)
    call('SET', LOCK, me, 'PX', ttl)
    call('HSET', RECORD, 'id', me, 'token', text(token), 'flags', flags, 'owner', owner, 'meta', meta, 'ttl', text(ttl))
  else
    draw()
    carry()
    put(me, {w = weight, ttl = ttl, owner = owner, meta = meta, since = text(now), token = text(token), flags = itsflags, state = 'granted'})
    call('ZADD', HOLDERS, text(now + ttl * 1000), me)
  end
  freed = false
  return grant(token)
end

-- become has the lock be of a kind.
local function become(newkind, newlimit)
  kind, limit = newkind, newlimit
  if r[1] ~= kind or r[2] ~= text(limit) then call('HSET', RECORD, 'kind', kind, 'limit', text(limit)) end
  r[1], r[2] = kind, text(limit)
end

local function refused(code, second)
  local a = {code, left(), second, rollend and rollend > now and 1 or 0}
  for _, s in ipairs(shown()) do a[#a + 1] = s end
  finish()
  return a
end

if held == 'mutex' and id == me then
  if has(flags, 'b') then return answer(2) end
  if has(flags, 'c') then return granted((string.gsub(flags, 'c', ''))) end
  call('PEXPIRE', LOCK, ttl)
  return grant(token)
end
if held == 'shared' and call('ZSCORE', HOLDERS, me) then
  local c = claim(me)
  if has(c.flags or '', 'b') then return answer(2) end
  if c.state == 'called' then return granted(c.flags) end
  call('ZADD', HOLDERS, text(now + ttl * 1000), me)
  return grant(tonumber(c.token))
end
local place = stands and waiting > 0 and call('ZRANK', LINE, me)
if place then return refused(3, place + 1) end

if barred(me) then return answer(7) end
if held == 'mutex' or held == 'shared' or waiting > 0 then
  if kind ~= mykind or limit ~= mylimit then return answer(4, kind, limit) end
end
local fits = waiting == 0 and (held == 'none' or held == 'shared' and mykind ~= 'mutex' and sum + weight <= limit)
if fits then
  if held == 'shared' and call('ZCARD', HOLDERS) >= MAXHOLDERS then return answer(5, MAXHOLDERS, 'hold it') end
  become(mykind, mylimit)
  if kind ~= 'mutex' then carry() end
  sum = sum + weight
  return granted(myflags)
end
if not queue then return refused(0, waiting) end
if waiting >= MAXLINE then
  trim()
  if waiting >= MAXLINE then return answer(5, MAXLINE, 'wait for it') end
end
if waiting == 0 then
  if held == 'foreign' then kind, limit = mykind, mylimit end
  become(kind, limit)
  fresh = true
end
call('ZADD', LINE, last(), me)
put(me, {w = weight, ttl = ttl, owner = owner, meta = meta, since = text(now), flags = myflags, state = 'waiting', session = session})
waiting = waiting + 1
return refused(3, waiting)
