-- Stores the token on which a majority of a Redlock's servers is to agree. A server takes it only for the claim that it
-- has granted, and only if it is larger than its own. So of two tokens for the same claim, the servers keep the larger.
--
-- KEYS  1 the lock  2 its record
-- ARGV  1 claim id  2 token
-- Replies {TAKEN}; {NO_CLAIM}; {TOO_SMALL, the server's own token}
local NO_CLAIM, TAKEN, TOO_SMALL = 0, 1, 2
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return {NO_CLAIM} end
local h = redis.call('HMGET', KEYS[2], 'id', 'token', 'flags')
local id, token, flags = h[1], h[2], h[3]
if id ~= ARGV[1] then return {NO_CLAIM} end
local agreed = string.find(flags, 's', 1, true) -- a majority has agreed on the token of the record
if tonumber(ARGV[2]) <= tonumber(token) and not (token == ARGV[2] and agreed) then return {TOO_SMALL, tonumber(token)} end
if not agreed then flags = flags .. 's' end
redis.call('HSET', KEYS[2], 'token', ARGV[2], 'flags', flags)
return {TAKEN}
