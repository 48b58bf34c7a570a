-- Redisson asks for a fair lock and stands in line. It writes its time once: that of the last one in the queue, or the TTL, and its
-- own wait. When it gets the lock it takes its wait off the times of all behind it. It reads its own clock, which is the server's here.
-- KEYS[1] lock hash   KEYS[2] queue   KEYS[3] times   ARGV[1] number   ARGV[2] owner   ARGV[3] lease in ms   ARGV[4] wait in ms
local hash, queue, times = KEYS[1], KEYS[2], KEYS[3]
local number, owner, wait = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[4])
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
local free = redis.call('exists', hash) == 0
if free and (not first or first == owner) then
  if first then redis.call('lpop', queue) end
  redis.call('zrem', times, owner)
  for _, other in ipairs(redis.call('lrange', queue, 0, -1)) do
    local ends = redis.call('zscore', times, other)
    if ends then redis.call('zadd', times, string.format('%.0f', ends - wait), other) end
  end
  redis.call('hset', hash, owner, '1')
  redis.call('pexpire', hash, ARGV[3])
  return {number, 1, 0}
end
if redis.call('hexists', hash, owner) == 1 then
  local count = redis.call('hincrby', hash, owner, 1)
  redis.call('pexpire', hash, ARGV[3])
  return {number, count, 0}
end
if not redis.call('zscore', times, owner) then
  local line = redis.call('lrange', queue, -1, -1)
  local last = line[1] and redis.call('zscore', times, line[1])
  local base = last and tonumber(last) or now + math.max(redis.call('pttl', hash), 0)
  redis.call('zadd', times, string.format('%.0f', base + wait), owner)
  redis.call('rpush', queue, owner)
end
return {number, 0, -3}
