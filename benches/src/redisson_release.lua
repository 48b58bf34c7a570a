-- Release a reentrant lock with the effects that Redisson's unlock has on the server; for comparison only.
--
-- KEYS[1] lock hash   KEYS[2] channel   KEYS[3] latch of this request
-- ARGV[1] payload   ARGV[2] lease in ms   ARGV[3] owner field   ARGV[4] publish command   ARGV[5] life of the latch in ms
--
-- Check:  the latch is not set yet (a repeat gets the first outcome again), and the owner has a field.
-- Change: the count shrinks by one. While holds remain the lease is refreshed; otherwise the hash goes and one
--         message is sent. The outcome is kept in the latch, which the client deletes with one more command.
-- Reply:  1 released, 0 still held, nil when the owner holds nothing.
local known = redis.call('get', KEYS[3])
if known then return tonumber(known) end
if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then return nil end
local outcome
if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[2])
  outcome = 0
else
  redis.call('del', KEYS[1])
  redis.call(ARGV[4], KEYS[2], ARGV[1])
  outcome = 1
end
redis.call('set', KEYS[3], outcome, 'px', ARGV[5])
return outcome
