-- Take a reentrant lock with the effects that Redisson's acquire has on the server; for comparison only.
--
-- KEYS[1] lock hash   ARGV[1] lease in ms   ARGV[2] owner field
--
-- Check:  the hash is absent, or the owner has a field in it.
-- Change: the owner's count grows by one and the lease is set.
-- Reply:  nil when granted; the remaining TTL in ms otherwise.
local free = redis.call('exists', KEYS[1]) == 0
if free or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])
