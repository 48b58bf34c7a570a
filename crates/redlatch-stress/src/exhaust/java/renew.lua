-- Redisson's watchdog: the TTL becomes the lease if the owner's field is there.
-- KEYS[1] lock hash   ARGV[1] number   ARGV[2] owner   ARGV[3] lease in ms
local held = redis.call('hexists', KEYS[1], ARGV[2])
if held == 1 then redis.call('pexpire', KEYS[1], ARGV[3]) end
return {tonumber(ARGV[1]), held}
