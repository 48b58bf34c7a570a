-- Redisson takes a read hold: each request counts and has a timeout key of its own, and the TTL of the hash grows to the lease.
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys   ARGV[1] number   ARGV[2] owner   ARGV[3] lease in ms
local hash, owner, number = KEYS[1], ARGV[2], tonumber(ARGV[1])
local mode = redis.call('hget', hash, 'mode')
local writes = mode == 'write' and redis.call('hexists', hash, owner .. ':write') == 1
if mode and mode ~= 'read' and not writes then return {number, 0, redis.call('pttl', hash)} end
if not mode then redis.call('hset', hash, 'mode', 'read') end
local count = redis.call('hincrby', hash, owner, 1)
redis.call('set', KEYS[2] .. owner .. ':rwlock_timeout:' .. count, '1', 'px', ARGV[3])
if redis.call('pttl', hash) < tonumber(ARGV[3]) then redis.call('pexpire', hash, ARGV[3]) end
return {number, count, 0}
