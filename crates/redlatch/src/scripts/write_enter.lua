-- Take one more write hold for an owner that has one already.
--
-- KEYS[1] lock hash   ARGV[1] owner number   ARGV[2] owner   ARGV[3] lease in ms
-- ARGV[4] the count that the caller knows of, or 0 when other processes may use the owner too
--
-- Check:  the owner's write field exists. A count above the known one means that this request ran before (a repeat).
-- Change: the count grows by one; the TTL is the longer of what was left and the lease, never their sum (R1).
-- Reply:  {number, new count, 0}; {number, 0, ttl ms} when the owner holds nothing.
local key, field, known = KEYS[1], ARGV[2] .. ':write', tonumber(ARGV[4])
local count = tonumber(redis.call('hget', key, field) or '0')
local ttl = redis.call('pttl', key)
if count == 0 then
  redis.call('hdel', key, field)
  return {tonumber(ARGV[1]), 0, ttl}
end
if known == 0 or count <= known then
  count = redis.call('hincrby', key, field, 1)
end
if ttl < tonumber(ARGV[3]) then redis.call('pexpire', key, ARGV[3]) end
return {tonumber(ARGV[1]), count, 0}
