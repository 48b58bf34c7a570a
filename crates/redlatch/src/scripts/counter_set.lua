-- Set a counter that does not exist yet, and tell everybody.
--
-- KEYS[1] counter          ARGV[1] request number   ARGV[2] value   ARGV[3] time to live in ms, 0 for none
-- ARGV[4] channel          ARGV[5] publish command               ARGV[6] message
--
-- Check and change in one step: SET with NX.
--         The message goes through pcall because an account without publish rights must not leave a counter half set.
-- Reply:  {number, 1} when set; {number, 0} when there was a counter already.
-- Repeat: answers otherwise, so it is sent once.
local set
if ARGV[3] == '0' then
  set = redis.call('set', KEYS[1], ARGV[2], 'nx')
else
  set = redis.call('set', KEYS[1], ARGV[2], 'nx', 'px', ARGV[3])
end
if not set then return {tonumber(ARGV[1]), 0} end
redis.pcall(ARGV[5], ARGV[4], ARGV[6])
return {tonumber(ARGV[1]), 1}
