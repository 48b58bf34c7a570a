-- Delete a semaphore.
--
-- KEYS[1] free permits   ARGV[1] request number   ARGV[2] channel   ARGV[3] publish command
--
-- Check:  the key holds a number; anything else is an error, never a deletion.
-- Change: DEL. The message `1` makes one waiter of each client look again: ours learn that there is nothing to wait for.
-- Reply:  {number, 1} when there was a semaphore, {number, 0} when not.
-- Repeat: answers otherwise, so it is sent once.
local n = tonumber(ARGV[1])
local free = redis.call('get', KEYS[1])
if not free then return {n, 0} end
if not tonumber(free) then return redis.error_reply('WRONGTYPE the key holds no number') end
redis.call('del', KEYS[1])
redis.pcall(ARGV[3], ARGV[2], '1')
return {n, 1}
