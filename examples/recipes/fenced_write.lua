-- Write a value unless a holder with a newer token has written.
--
-- KEYS[1] hash of value and fence      ARGV[1] token      ARGV[2] value
--
-- Check:  the token is no lower than the one of the last write.
-- Change: value and token, written together. The token is stored as it came: the text that Lua makes of it is 1.8e+15.
-- Reply:  1 written; 0 stale, and nothing is changed.
local last = redis.call('hget', KEYS[1], 'fence')
if last and tonumber(ARGV[1]) < tonumber(last) then return 0 end
redis.call('hset', KEYS[1], 'value', ARGV[2], 'fence', ARGV[1])
return 1
