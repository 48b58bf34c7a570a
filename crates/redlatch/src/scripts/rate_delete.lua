-- Delete a rate limiter: its settings, what is shared, and what belongs to this client.
--
-- KEYS[1] settings   KEYS[2] free permits, shared   KEYS[3] free permits, of this client
-- KEYS[4] permits taken, shared                     KEYS[5] permits taken, of this client   ARGV[1] request number
--
-- Check:  the key holds the settings of a rate limiter, or nothing.
-- Change: DEL of all five.
-- Reply:  {number, 1} when there was something; {number, 0} when not; {number, -3} when the hash is something else.
-- Repeat: answers otherwise, so it is sent once.
local n = tonumber(ARGV[1])
if not redis.call('hget', KEYS[1], 'type') and redis.call('exists', KEYS[1]) == 1 then return {n, -3} end
return {n, redis.call('del', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]) > 0 and 1 or 0}
