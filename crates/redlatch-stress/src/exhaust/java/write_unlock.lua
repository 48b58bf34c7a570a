-- Redisson gives a write hold back; what the owner reads stays, in mode read, and nobody is told of that (R6 in `docs/protocol.md`).
-- KEYS[1] lock hash   ARGV[1] number   ARGV[2] owner   ARGV[3] lease in ms   ARGV[4] channel
local hash, field, number = KEYS[1], ARGV[2] .. ':write', tonumber(ARGV[1])
if redis.call('hexists', hash, field) == 0 then return {number, -1} end
local count = redis.call('hincrby', hash, field, -1)
if count > 0 then
  redis.call('pexpire', hash, ARGV[3])
  return {number, count}
end
redis.call('hdel', hash, field)
if redis.call('hlen', hash) == 1 then
  redis.call('del', hash)
  redis.call('publish', ARGV[4], '1')
else
  redis.call('hset', hash, 'mode', 'read')
end
return {number, 0}
