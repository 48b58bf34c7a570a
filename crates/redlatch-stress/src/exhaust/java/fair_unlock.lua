-- Redisson gives one hold of a fair lock back; when it was the last, the first one whose time is not over is told.
-- KEYS[1] lock hash   KEYS[2] queue   KEYS[3] times   ARGV[1] number   ARGV[2] owner   ARGV[3] lease in ms   ARGV[4] channel
local hash, queue, times, number = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local first = redis.call('lindex', queue, 0)
while first do
  local ends = redis.call('zscore', times, first)
  if not ends or tonumber(ends) > now then break end
  redis.call('zrem', times, first)
  redis.call('lpop', queue)
  first = redis.call('lindex', queue, 0)
end
if redis.call('hexists', hash, ARGV[2]) == 0 then return {number, -1} end
local left = redis.call('hincrby', hash, ARGV[2], -1)
if left > 0 then
  redis.call('pexpire', hash, ARGV[3])
  return {number, left}
end
redis.call('del', hash)
if first then redis.call('publish', ARGV[4] .. ':' .. first, '0') end
return {number, 0}
