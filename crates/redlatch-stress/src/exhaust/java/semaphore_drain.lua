-- Redisson takes all permits that are free: it reads, and sets 0.
-- KEYS[1] free permits   ARGV[1] number
local free = redis.call('get', KEYS[1])
if not free then return {tonumber(ARGV[1]), 0} end
redis.call('set', KEYS[1], '0')
return {tonumber(ARGV[1]), tonumber(free)}
