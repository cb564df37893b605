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
if quiet and mykind == 'mutex' and not (h[10] and has(h[10], me)) then
  local called = value == me and id == me and flags == 'c'
  if called or not value and not h[11] and not has(flags, 'c') then
    token = text(math.max(token + 1, now))
    call('SET', LOCK, me, 'PX', ttl)
    call('HSET', RECORD, 'id', me, 'token', token, 'flags', myflags, 'owner', owner, 'meta', meta, 'ttl', text(ttl))
    if called then call('HDEL', CLAIMS, me) end
    return tonumber(token)
  end
  local waiting = h[11] and call('ZCARD', LINE) or 0
  if value and value == id and value ~= me and queue and waiting < MAXLINE and call('ZADD', LINE, 'NX', text(seq), me) == 1 then
    local since = text(now)
    call('HSET', RECORD, 'line', '1', 'seq', text(seq))
    call('ZADD', SIGNS, since, me)
    call('HSET', CLAIMS, me, cjson.encode({w = weight, ttl = ttl, owner = owner, meta = meta, since = since, flags = myflags, state = 'waiting', session = session}))
    if waiting == 0 then
      for _, key in ipairs({CLAIMS, LINE, SIGNS}) do call('PEXPIREAT', key, text(kept / 1000)) end
    end
    local left, o = call('PTTL', LOCK), call('HMGET', RECORD, 'owner', 'meta', 'ttl')
    return {3, left, waiting + 1, 0, {id, has(flags, 'c') and '' or h[2], o[1], o[2], o[3], h[2], flags, '1', left}}
  end
end
