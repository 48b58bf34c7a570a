-- Take a lock once more for an owner that holds it already.
--
-- KEYS[1] lock hash   ARGV[1] owner number   ARGV[2] owner field   ARGV[3] lease in ms
-- ARGV[4] the count that the caller knows of, or 0 when other processes may use the owner too
--
-- Check:  the owner field exists. A count above the known one means that this request ran before (a repeat).
-- Change: the count grows by one; the lease only ever grows, so that a short inner hold never cuts the outer one.
-- Reply:  {number, new count, 0}; {number, 0, ttl ms} when the owner holds nothing.
local key, owner, known = KEYS[1], ARGV[2], tonumber(ARGV[4])
local count = tonumber(redis.call('hget', key, owner) or '0')
local ttl = redis.call('pttl', key)
if count == 0 then
  redis.call('hdel', key, owner)
  return {tonumber(ARGV[1]), 0, ttl}
end
if known == 0 or count <= known then
  count = redis.call('hincrby', key, owner, 1)
end
if tonumber(ARGV[3]) > ttl then redis.call('pexpire', key, ARGV[3]) end
return {tonumber(ARGV[1]), count, 0}
