-- Take items from a stock, all that were asked for or none.
--
-- KEYS[1] stock counter   ARGV[1] amount
--
-- Check:  the counter exists and covers the amount.
-- Change: DECRBY.
-- Reply:  items left; -1 when too few are left, -2 when there is no such stock.
-- Repeat: counts again, so it is sent once.
local left = redis.call('get', KEYS[1])
if not left then return -2 end
if tonumber(left) < tonumber(ARGV[1]) then return -1 end
return redis.call('decrby', KEYS[1], ARGV[1])
