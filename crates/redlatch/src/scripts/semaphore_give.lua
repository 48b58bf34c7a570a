-- Put permits in, or take some out without looking.
--
-- KEYS[1] free permits   ARGV[1] request number   ARGV[2] permits, negative to take out
-- ARGV[3] channel        ARGV[4] publish command   ARGV[5] 1 = only if the counter exists
--
-- Check:  nothing, or that the counter exists.
-- Change: INCRBY, which creates the counter and keeps a time to live. The message is the total, because others wake as
--         many waiters as it says; a total that nobody can take from is not told, because a negative one breaks listeners.
-- Reply:  {number, 1, total}; {number, 0, 0} when there is no counter and none was to be created.
-- Repeat: counts again, so it is sent once.
local n = tonumber(ARGV[1])
if ARGV[5] == '1' and redis.call('exists', KEYS[1]) == 0 then return {n, 0, 0} end
local total = redis.call('incrby', KEYS[1], ARGV[2])
if total > 0 then redis.pcall(ARGV[4], ARGV[3], string.format('%.0f', total)) end
return {n, 1, total}
