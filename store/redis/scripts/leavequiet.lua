-- The step of a claim that leaves, whether it holds, was called or waits: it goes, and those it lets in are called.
--
-- ARGV  6 claim id  7 '1': a request to make the claim may yet come, and must not make it then
--       8 of a Redlock that gives a ballot back: its number; a later ballot keeps what it has got
-- Gives 1 if it stood; 2 it was broken; 8 it does not stand, and may have been broken; 0 it does not stand, and was not
local me = ARGV[6]
if ARGV[8] and ARGV[8] + 0 < (tonumber(call('HGET', RECORD, 'ballot')) or 0) then return 0 end
if quiet and value == me and id == me and not has(flags, 'c') and ARGV[7] ~= '1' then
  if not inuse then
    call('DEL', LOCK)
    call(PUBLISH, CHANNEL, 'free')
    return 1
  end
  local first = call('ZRANGE', LINE, 0, 1, 'WITHSCORES')
  local who, after = first[1], first[3]
  local found = who and call('HMGET', CLAIMS, who, '?' .. who) or {}
  local c, sign = found[1] and cjson.decode(found[1]), found[2]
  if c and (sign or c.since) + c.ttl * 1000 >= now then
    call('ZREM', LINE, who)
    if sign then call('HDEL', CLAIMS, '?' .. who) end
    call('SET', LOCK, who, 'PX', math.min(WINDOW, c.ttl))
    call('HSET', RECORD, 'id', who, 'flags', 'c' .. c.flags, 'owner', c.owner, 'meta', c.meta, 'ttl', c.ttl)
    call(PUBLISH, CHANNEL .. ':' .. c.session, 'call ' .. who)
    local n = after and now - first[4] > SOON and call('HGET', CLAIMS, after)
    if n then call(PUBLISH, CHANNEL .. ':' .. cjson.decode(n).session, 'next ' .. after .. ' ' .. WINDOW) end
    if not after then call('HDEL', RECORD, 'line') end
    return 1
  end
end
