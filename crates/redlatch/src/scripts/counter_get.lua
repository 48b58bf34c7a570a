-- Read a counter, on the master because it is a script.
--
-- KEYS[1] counter   ARGV[1] request number
--
-- Check:  the key holds a number.   Change: nothing.
-- Reply:  {number, 1, value}; {number, 0, 0} when there is no counter.
-- Repeat: harmless.
local value = redis.call('get', KEYS[1])
if not value then return {tonumber(ARGV[1]), 0, 0} end
local number = tonumber(value)
if not number then return redis.error_reply('WRONGTYPE the key holds no number') end
return {tonumber(ARGV[1]), 1, number}
