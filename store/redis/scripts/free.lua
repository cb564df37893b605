-- Gives a mutex back that nobody stands in line for, and says so to those who wait outside of the line.
--
-- KEYS  1 the lock  2 its record
-- ARGV  1 claim id  2 PUBLISH or SPUBLISH  3 the channel of the lock  4 '1': a request to make the claim may yet come
-- Gives 1 released; 0 the claim does not hold the lock as a plain mutex; 6 ask leave.lua
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] or redis.call('HEXISTS', KEYS[2], 'line') == 1 or ARGV[4] == '1' then return 6 end
redis.call('DEL', KEYS[1])
redis.call(ARGV[2], ARGV[3], 'free')
return 1
