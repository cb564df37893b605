-- Reads everything that describes a lock: its holders, and a page of the queue. It changes nothing, so it may find
-- expired claims, which the client leaves out by the time in the reply.
--
-- KEYS  as in shared/state.lua
-- ARGV  1 where in the queue the page begins: '-inf', or '(' and the last score of the page before
-- Replies {server microseconds, type of the lock's key, its value if it is ours, ms left, digest if it is foreign,
--       record, claims and when they were last heard of, holders with expiries, queue with scores}
--- include shared/foreign.lua
local PAGE = 256
local t = redis.call('TIME')
local kind = redis.call('TYPE', KEYS[1]).ok
local value = kind == 'string' and redis.call('GETRANGE', KEYS[1], 0, 1023) or ''
local record = redis.call('HMGET', KEYS[2], 'id', 'token', 'flags', 'kind', 'limit', 'mark', 'owner', 'meta', 'ttl')
local digest = ''
if kind ~= 'none' and value ~= record[1] and value ~= record[6] then
  kind, digest = describe_foreign(KEYS[1])
  value = ''
end
local holders = redis.call('ZRANGE', KEYS[4], 0, -1, 'WITHSCORES')
local queue = redis.call('ZRANGEBYSCORE', KEYS[5], ARGV[1] or '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, PAGE)
local claims = {}
for _, list in ipairs({holders, queue}) do
  for i = 1, #list, 2 do
    local found = redis.call('HMGET', KEYS[3], list[i], '?' .. list[i])
    for k, key in ipairs({list[i], '?' .. list[i]}) do
      if found[k] then
        claims[#claims + 1] = key
        claims[#claims + 1] = found[k]
      end
    end
  end
end
return {t[1] * 1000000 + t[2], kind, value, redis.call('PTTL', KEYS[1]), digest, record, claims, holders, queue}
