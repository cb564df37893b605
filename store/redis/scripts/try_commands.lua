-- Runs every command that the other scripts use, on the keys of a lock that nobody uses, and removes the keys.
--
-- KEYS  1 the lock  2 its record  3 to 5 the parts of its queue
-- ARGV  1 the command that sends a notice  2 a name of a channel
-- Replies a list: for each command that was refused, its name and the error.
local refused = {}
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = command
    refused[#refused + 1] = reply.err
  end
end
try('TIME')
try('SET', KEYS[1], 'x', 'PX', 1000)
try('GET', KEYS[1])
try('GETRANGE', KEYS[1], 0, 0)
try('STRLEN', KEYS[1])
try('TYPE', KEYS[1])
try('PTTL', KEYS[1])
try('PERSIST', KEYS[1])
try('PEXPIREAT', KEYS[1], 1)
for i = 2, 4 do
  try('HSET', KEYS[i], 'f', 'x')
  try('PEXPIRE', KEYS[i], 1000)
end
try('HGET', KEYS[2], 'f')
try('HMGET', KEYS[2], 'f')
try('HEXISTS', KEYS[2], 'f')
try('HSTRLEN', KEYS[2], 'f')
try('HKEYS', KEYS[2])
try('HLEN', KEYS[2])
try('HDEL', KEYS[2], 'f')
try('ZADD', KEYS[5], 1, 'm')
try('PEXPIRE', KEYS[5], 1000)
try('ZSCORE', KEYS[5], 'm')
try('ZRANGE', KEYS[5], 0, 0)
try('ZREVRANGE', KEYS[5], 0, 0)
try('ZRANGEBYSCORE', KEYS[5], 0, 0)
try('ZREM', KEYS[5], 'm')
try(ARGV[1], ARGV[2], '')
try('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
return refused
