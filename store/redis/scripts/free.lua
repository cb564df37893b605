-- Gives a mutex back that nobody stands in line for, and says so to those who wait outside of the line.
--
-- KEYS  1 the lock  2 its record, whose key is the name of the lock's channel, too
-- ARGV  1 claim id  2 PUBLISH or SPUBLISH
-- Gives 1 released; 6 ask leave.lua
local call, lock, record = redis.call, KEYS[1], KEYS[2]
if redis.pcall('GETRANGE', lock, 0, 1023) ~= ARGV[1] or call('HEXISTS', record, 'line') == 1 then return 6 end
call('DEL', lock)
call(ARGV[2], record, 'free')
return 1
