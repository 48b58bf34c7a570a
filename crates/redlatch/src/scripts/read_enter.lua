-- Take one more read hold for an owner that has one already.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys   KEYS[3] token counter, if a token is drawn
-- ARGV[1] request number   ARGV[2] owner   ARGV[3] lease in ms
-- ARGV[4] 1 = also draw a token; otherwise absent
--
-- Check:  the owner field exists and one of its timeout keys does (R5).
-- Change: the count grows by one, also for a repeat, because another process may count too, and all holds of the owner get the same
--         timeout: the longer of what was left and the new lease (R4), so that it does not matter which of them goes first. The TTL of
--         the hash only grows.
--         A token is drawn for a caller that knows none of this hold: the last one drawn may be of an earlier holder.
-- Reply:  {number, new count, token or 0}; {number, 0, ttl ms} when the owner holds nothing.
-- Repeat: counts again, so it is sent once.
-- Recovering: in parts; what is refused comes before anything has changed.
local key, owner = KEYS[1], ARGV[2]
local own = KEYS[2] .. owner .. ':rwlock_timeout:'
local count, longest = tonumber(redis.call('hget', key, owner) or '0'), 0
for i = 1, math.min(count, 1000) do longest = math.max(longest, redis.call('pttl', own .. i)) end
local ttl = redis.call('pttl', key)
if longest == 0 then
  redis.call('del', own .. '1')
  return {tonumber(ARGV[1]), 0, ttl}
end
local token = 0
if ARGV[4] == '1' then
  -- As in acquire.lua.
  local now = redis.call('time')
  token = now[1] * 1000000 + now[2]
  local last = tonumber(redis.call('get', KEYS[3]) or '0')
  if last >= token then token = last + 1 end
  redis.call('set', KEYS[3], string.format('%.0f', token))
end
if longest < tonumber(ARGV[3]) then longest = ARGV[3] end
local wanted = count + 1
for i = math.min(wanted, 1000), 1, -1 do redis.call('set', own .. i, '1', 'px', longest) end
redis.call('hset', key, owner, wanted)
if ttl < tonumber(longest) then redis.call('pexpire', key, longest) end
return {tonumber(ARGV[1]), wanted, token}
