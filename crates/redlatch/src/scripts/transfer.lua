-- Pass a lock from one owner to the next without ever leaving it free.
--
-- KEYS[1] lock hash        ARGV[1] request number   ARGV[2] owner that gives   ARGV[3] owner that takes
-- KEYS[2] token counter    ARGV[4] lease in ms                ARGV[5] 1 = also draw a token
-- ARGV[6] 1 = only the giver's one hold; 2 = the same, to an owner that it was taken from: the lease stays, and nothing is a repeat
--
-- Check:  the giving owner has its field, or the taking owner has it already (a repeat). If only one hold is to move, the giver counts
--         one: what it counts besides belongs to other processes. A read-write lock is never entered.
-- Change: the token is drawn first, because it may be refused and nothing may have moved then; the next owner's field is
--         written before the other is removed; the lease is set. An owner that has the lock already keeps its count, which another
--         process may have raised.
-- Reply:  {number, 1, token or 0}; {number, 2, 0} the giver has more than may be moved, and keeps it; {number, 0, ttl ms} when the giver
--         no longer held the lock; {number, -1, 0} when the hash belongs to a read-write lock.
-- Repeat: harmless.
-- Recovering: waits; what it moves may have been given back, and that be missing.
local key = KEYS[1]
local one, back = ARGV[6] == '1' or ARGV[6] == '2', ARGV[6] == '2'
local held = redis.call('hmget', key, ARGV[2], ARGV[3], 'mode')
if held[3] then return {tonumber(ARGV[1]), -1, 0} end
if not held[1] and (back or not held[2]) then
  redis.call('hdel', key, ARGV[2])
  return {tonumber(ARGV[1]), 0, redis.call('pttl', key)}
end
if one and held[1] and held[1] ~= '1' then
  redis.call('hdel', key, '')
  return {tonumber(ARGV[1]), 2, 0}
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
if not back then redis.call('pexpire', key, lease) end
return {tonumber(ARGV[1]), 1, token}
