-- Redisson gives a permit back. One whose time is over goes back as well, and is reported as not held (P2 in `docs/protocol.md`).
-- KEYS[1] free permits   KEYS[2] permits taken   ARGV[1] number   ARGV[2] id   ARGV[3] channel
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ends = redis.call('zscore', KEYS[2], ARGV[2])
if not ends then return {tonumber(ARGV[1]), 0} end
redis.call('zrem', KEYS[2], ARGV[2])
redis.call('publish', ARGV[3], tostring(redis.call('incrby', KEYS[1], 1)))
return {tonumber(ARGV[1]), tonumber(ends) > now and 1 or 0}
