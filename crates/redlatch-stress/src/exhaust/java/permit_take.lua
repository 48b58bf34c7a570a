-- Redisson takes a permit under an id of its own. It gives back no more that have ended than it asks for (P3 in `docs/protocol.md`).
-- KEYS[1] free permits   KEYS[2] permits taken   ARGV[1] number   ARGV[2] id   ARGV[3] lease in ms
local number = tonumber(ARGV[1])
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local over = redis.call('zrangebyscore', KEYS[2], '-inf', now, 'limit', 0, 1)
if over[1] then
  redis.call('zrem', KEYS[2], over[1])
  redis.call('incrby', KEYS[1], 1)
end
if tonumber(redis.call('get', KEYS[1]) or '0') < 1 then return {number, 0} end
redis.call('decrby', KEYS[1], 1)
redis.call('zadd', KEYS[2], string.format('%.0f', now + ARGV[3]), ARGV[2])
return {number, 1}
