-- Take all permits that are free, or forgive those that are owed.
--
-- KEYS[1] free permits   ARGV[1] request number
--
-- Check:  the counter exists.
-- Change: DECRBY by its own value, which leaves 0 and, unlike SET, keeps a time to live.
-- Reply:  {number, 1, permits there were}; {number, 0, 0} when there is no counter.
-- Repeat: answers otherwise, so it is sent once.
local free = redis.call('get', KEYS[1])
if not free then return {tonumber(ARGV[1]), 0, 0} end
redis.call('decrby', KEYS[1], free)
return {tonumber(ARGV[1]), 1, tonumber(free)}
