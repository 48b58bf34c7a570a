-- Redisson gives one hold back, and sets the TTL to its lease while others stay.
-- KEYS[1] lock hash   ARGV[1] number   ARGV[2] owner   ARGV[3] lease in ms   ARGV[4] channel
local number, owner = tonumber(ARGV[1]), ARGV[2]
if redis.call('hexists', KEYS[1], owner) == 0 then return {number, -1} end
local left = redis.call('hincrby', KEYS[1], owner, -1)
if left > 0 then
  redis.call('pexpire', KEYS[1], ARGV[3])
  return {number, left}
end
redis.call('del', KEYS[1])
redis.call('publish', ARGV[4], '0')
return {number, 0}
