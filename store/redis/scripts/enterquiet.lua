-- The step of a claim that wants to be granted, where there is a line or may come to be one: it comes, comes again, or
-- stands in line and gives a sign of life.
--
-- ARGV  6 claim id  7 kind  8 limit  9 weight  10 TTL in ms  11 owner  12 note  13 flags  14 '1': stand in line
--       15 session of its client
-- Gives the token: granted; {0, ms left, claims in line, 0, holders...} held; {2} broken; {3, ms left, place in line, 1 if
--       all in line are asked to show themselves, holders...} in line; {4, kind, limit} mismatch; {5, count, what} full;
--       {7} it was released, and this request came late
local me, mykind, mylimit, weight, ttl = ARGV[6], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local owner, meta, myflags, queue, session = ARGV[11], ARGV[12], ARGV[13], ARGV[14] == '1', ARGV[15]
if quiet and mykind == 'mutex' and not barred(me) and not ended then
  local called = value == me and id == me and flags == 'c'
  local mytoken = math.max(token + 1, now)
  if called then
    call('PEXPIRE', LOCK, ttl)
    call('HSET', RECORD, 'token', text(mytoken), 'flags', myflags)
    call('HDEL', CLAIMS, me)
    return mytoken
  end
  if not value and not inuse and not has(flags, 'c') then
    call('SET', LOCK, me, 'PX', ttl)
    call('HSET', RECORD, 'id', me, 'token', text(mytoken), 'flags', myflags, 'owner', owner, 'meta', meta, 'ttl', text(ttl))
    return mytoken
  end
  local waiting = inuse and call('ZCARD', LINE) or 0
  if value and value == id and value ~= me and queue and waiting < MAXLINE and call('ZADD', LINE, 'NX', last(), me) == 1 then
    call('HSET', CLAIMS, me, cjson.encode({w = weight, ttl = ttl, owner = owner, meta = meta, since = text(now), flags = myflags, state = 'waiting', session = session}))
    if waiting == 0 then
      call('HSET', RECORD, 'line', '1')
      for _, key in ipairs({CLAIMS, LINE}) do call('PEXPIREAT', key, text(kept / 1000 - DAY)) end
    end
    local left, o = call('PTTL', LOCK), call('HMGET', RECORD, 'owner', 'meta', 'ttl')
    return {3, left, waiting + 1, 0, {id, has(flags, 'c') and '' or h[2], o[1], o[2], o[3], h[2], flags, '1', left}}
  end
end
