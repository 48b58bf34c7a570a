-- Take a lock once more for an owner that holds it already.
--
-- KEYS[1] lock hash   KEYS[2] token counter, if a token is drawn
-- ARGV[1] request number   ARGV[2] owner field   ARGV[3] lease in ms
-- ARGV[4] 1 = also draw a token; otherwise absent
--
-- Check:  the owner field exists, in a hash that is no read-write lock's.
-- Change: the count grows by one, also for a repeat, because another process may count too; the lease only ever grows, so that a short
--         inner hold never cuts the outer one.
--         A token is drawn for a caller that knows none of this hold: the last one drawn may be of an earlier holder.
-- Reply:  {number, new count, token or 0}; {number, 0, ttl ms} when the owner holds nothing.
-- Repeat: counts again, so it is sent once.
-- Recovering: in parts; what is refused comes before anything has changed.
local key, owner = KEYS[1], ARGV[2]
local held = redis.call('hmget', key, owner, 'mode')
local count = not held[2] and tonumber(held[1] or '0') or 0
local ttl = redis.call('pttl', key)
if count == 0 then
  redis.call('hdel', key, held[2] and '' or owner)
  return {tonumber(ARGV[1]), 0, ttl}
end
local token = 0
if ARGV[4] == '1' then
  -- As in acquire.lua.
  local now = redis.call('time')
  token = now[1] * 1000000 + now[2]
  local last = tonumber(redis.call('get', KEYS[2]) or '0')
  if last >= token then token = last + 1 end
  redis.call('set', KEYS[2], string.format('%.0f', token))
end
count = redis.call('hincrby', key, owner, 1)
if tonumber(ARGV[3]) > ttl then redis.call('pexpire', key, ARGV[3]) end
return {tonumber(ARGV[1]), count, token}
