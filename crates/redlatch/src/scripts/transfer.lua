-- Pass a lock from one owner to the next without ever leaving it free.
--
-- KEYS[1] lock hash        ARGV[1] number of the next owner   ARGV[2] owner that gives   ARGV[3] owner that takes
-- KEYS[2] token counter    ARGV[4] lease in ms                ARGV[5] 1 = also draw a token
--
-- Check:  the giving owner has its field, or the taking owner has it already (a repeat).
-- Change: the token is drawn first, because it may be refused and nothing may have moved then; the next owner's field is
--         written before the other is removed; the lease is set. An owner that has the lock already keeps its count, which another
--         process may have raised.
-- Reply:  {number, 1, token or 0}; {number, 0, ttl ms} when the giver no longer held the lock.
local key = KEYS[1]
local held = redis.call('hmget', key, ARGV[2], ARGV[3])
if not held[1] and not held[2] then
  redis.call('hdel', key, ARGV[2])
  return {tonumber(ARGV[1]), 0, redis.call('pttl', key)}
end
local token = 0
if ARGV[5] == '1' then
  local now = redis.call('time')
  token = now[1] * 1000000 + now[2]
  local last = tonumber(redis.call('get', KEYS[2]) or '0')
  if last >= token then token = last + 1 end
  redis.call('set', KEYS[2], string.format('%.0f', token))
end
if not held[2] then redis.call('hset', key, ARGV[3], '1') end
if ARGV[2] ~= ARGV[3] then redis.call('hdel', key, ARGV[2]) end
local lease = ARGV[4]
-- A repeat may come late, and find it renewed for longer.
if held[2] then lease = math.max(redis.call('pttl', key), lease) end
redis.call('pexpire', key, lease)
return {tonumber(ARGV[1]), 1, token}
