-- Keys go, whatever they are; also what an operator or a lost server does.
-- KEYS what goes   ARGV[1] number   ARGV[2] channel that is told, '' for none
local gone = redis.call('del', unpack(KEYS))
if gone > 0 and ARGV[2] ~= '' then redis.call('publish', ARGV[2], '0') end
return {tonumber(ARGV[1]), gone}
