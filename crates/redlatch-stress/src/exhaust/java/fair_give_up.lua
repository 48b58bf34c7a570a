-- Redisson stops waiting for a fair lock: it takes its wait off the times of all behind it, and leaves queue and times.
-- KEYS[1] queue   KEYS[2] times   ARGV[1] number   ARGV[2] owner   ARGV[3] wait in ms
local behind = false
for _, other in ipairs(redis.call('lrange', KEYS[1], 0, -1)) do
  local ends = behind and redis.call('zscore', KEYS[2], other)
  if ends then redis.call('zadd', KEYS[2], string.format('%.0f', ends - ARGV[3]), other) end
  behind = behind or other == ARGV[2]
end
redis.call('zrem', KEYS[2], ARGV[2])
redis.call('lrem', KEYS[1], 0, ARGV[2])
return {tonumber(ARGV[1]), 0}
