-- Turn one write hold of an owner into a read hold of the same owner, without ever leaving the lock free.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys
-- ARGV[1] owner number   ARGV[2] owner   ARGV[3] lease of the read hold in ms   ARGV[4] channel   ARGV[5] publish command
-- ARGV[6] the write holds before this request, 0 = unknown   ARGV[7] the read holds before this request
-- ARGV[8] 1 = all write holds are this one, whatever the field says
--
-- Check:  the owner's write field exists. Fewer write holds than before mean that this request ran before (a repeat); for the
--         last one there must be more read holds, too. The read hold that it made may have been given back since.
-- Change: a repeat renews the read holds, because its caller counts the lease from its sending. Otherwise
--         the timeout keys come first, because they are what the server may refuse; all read holds of the owner get the same timeout.
--         With the last write hold the mode becomes read, the TTL is what the read holds need, and `1` is sent, because other
--         readers may come in now (R6; Redisson sends nothing).
-- Reply:  {number, read holds, write holds left}; {number, 0, 0} when there is no write hold.
local key, owner = KEYS[1], ARGV[2]
local field, own = owner .. ':write', KEYS[2] .. owner .. ':rwlock_timeout:'
local held = redis.call('hmget', key, field, owner)
local writes, reads = tonumber(held[1] or '0'), tonumber(held[2] or '0')
local longest = 0
for i = 1, math.min(reads, 1000) do longest = math.max(longest, redis.call('pttl', own .. i)) end
if longest == 0 then reads = 0 end
local known = tonumber(ARGV[6])
local repeated = writes < known and (known > 1 or reads > tonumber(ARGV[7]))
if repeated and reads == 0 then return {tonumber(ARGV[1]), 0, writes} end
if writes == 0 and not repeated then
  redis.call('hdel', key, field)
  return {tonumber(ARGV[1]), 0, 0}
end
if longest < tonumber(ARGV[3]) then longest = ARGV[3] end
if repeated then
  for i = math.min(reads, 1000), 1, -1 do redis.call('set', own .. i, '1', 'px', longest) end
  if redis.call('pttl', key) < tonumber(longest) then redis.call('pexpire', key, longest) end
  return {tonumber(ARGV[1]), reads, writes}
end
reads = reads + 1
for i = math.min(reads, 1000), 1, -1 do redis.call('set', own .. i, '1', 'px', longest) end
redis.call('hset', key, owner, reads)
if writes > 1 and ARGV[8] ~= '1' then
  redis.call('hincrby', key, field, -1)
  if redis.call('pttl', key) < tonumber(longest) then redis.call('pexpire', key, longest) end
  return {tonumber(ARGV[1]), reads, writes - 1}
end
redis.call('hset', key, 'mode', 'read')
redis.call('hdel', key, field)
redis.call('pexpire', key, longest)
redis.pcall(ARGV[5], ARGV[4], '1')
return {tonumber(ARGV[1]), reads, 0}
