-- Take permits, all that were asked for or none.
--
-- KEYS[1] free permits   ARGV[1] request number   ARGV[2] permits
--
-- Check:  the counter exists and covers the permits.
-- Change: DECRBY, which keeps a time to live.
-- Reply:  {number, 1, permits left}; {number, 0, permits free} when too few are; {number, -1, 0} when nobody has set any.
-- Repeat: counts again, so it is sent once.
local n = tonumber(ARGV[1])
local free = redis.call('get', KEYS[1])
if not free then return {n, -1, 0} end
local number = tonumber(free)
if not number then return redis.error_reply('WRONGTYPE the key holds no number') end
if number < tonumber(ARGV[2]) then return {n, 0, number} end
return {n, 1, redis.call('decrby', KEYS[1], ARGV[2])}
