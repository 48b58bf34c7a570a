-- Redisson takes a lock or enters it: each request counts, and each sets the TTL, be it shorter.
-- KEYS[1] lock hash   KEYS[2] token counter, if it is a fenced lock   ARGV[1] number   ARGV[2] owner   ARGV[3] lease in ms
local number, owner, token = tonumber(ARGV[1]), ARGV[2], 0
local mine = redis.call('hexists', KEYS[1], owner) == 1
if not mine and redis.call('exists', KEYS[1]) == 1 then return {number, 0, redis.call('pttl', KEYS[1])} end
if KEYS[2] then token = redis.call('incr', KEYS[2]) end
local count = redis.call('hincrby', KEYS[1], owner, 1)
redis.call('pexpire', KEYS[1], ARGV[3])
return {number, count, token}
