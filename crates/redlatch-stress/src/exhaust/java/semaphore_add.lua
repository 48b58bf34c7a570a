-- Redisson changes how many permits there are: it reads, adds and sets, and tells the total whatever it is (S1, S2 in
-- `docs/protocol.md`).
-- KEYS[1] free permits   ARGV[1] number   ARGV[2] permits, perhaps negative   ARGV[3] channel
local total = string.format('%.0f', (redis.call('get', KEYS[1]) or '0') + ARGV[2])
redis.call('set', KEYS[1], total)
redis.call('publish', ARGV[3], total)
return {tonumber(ARGV[1]), tonumber(total)}
