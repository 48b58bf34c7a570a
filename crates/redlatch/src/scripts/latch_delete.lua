-- Delete a latch and let everybody through.
--
-- KEYS[1] count   ARGV[1] request number   ARGV[2] channel   ARGV[3] publish command
--
-- Check:  the key holds a count; anything else is an error, never a deletion.
-- Change: DEL, and `0`, which opens the gates. Redisson's own message for this, `1`, closes those of its waiters; sent before
--         the `0` it would, too, because releases such as 3.15.1 handle messages in any order.
-- Reply:  {number, 1} when there was a latch, {number, 0} when not.
-- Repeat: answers otherwise, so it is sent once.
local n = tonumber(ARGV[1])
local count = redis.call('get', KEYS[1])
if not count then return {n, 0} end
if not tonumber(count) then return redis.error_reply('WRONGTYPE the key holds no number') end
redis.call('del', KEYS[1])
redis.pcall(ARGV[3], ARGV[2], '0')
return {n, 1}
