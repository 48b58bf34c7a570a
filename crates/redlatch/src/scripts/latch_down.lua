-- Count a latch down by one.
--
-- KEYS[1] count   ARGV[1] request number   ARGV[2] channel   ARGV[3] publish command
--
-- Check:  the count exists.
-- Change: the last step is DEL, which is allowed when memory is full, and tells everybody `0`; any other is DECR. What is
--         not above zero then goes too, without a message, because nobody waits for it.
-- Reply:  {number, count left}.
-- Repeat: counts again, so it is sent once.
-- Recovering: in parts; the last step is taken, and any other is refused.
local n = tonumber(ARGV[1])
local count = redis.call('get', KEYS[1])
if not count then return {n, 0} end
if count == '1' then
  redis.call('del', KEYS[1])
  redis.pcall(ARGV[3], ARGV[2], '0')
  return {n, 0}
end
local left = redis.call('decr', KEYS[1])
if left > 0 then return {n, left} end
redis.call('del', KEYS[1])
return {n, 0}
