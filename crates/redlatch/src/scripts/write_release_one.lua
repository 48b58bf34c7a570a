-- Give back one of several write holds of one owner, or the last one.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys
-- ARGV[1] request number   ARGV[2] owner   ARGV[3] channel   ARGV[4] publish command
-- ARGV[5] the count before this release, or 0 when unknown   ARGV[6] lease in ms for the holds that stay
--
-- Check:  the owner's write field exists. A count below the known one means that this request ran before (a repeat).
-- Change: the count shrinks by one and the TTL is kept or raised; the last hold goes as in write_release.
-- Reply:  {number, holds left, receivers}; {number, -1, 0} when the owner holds nothing.
-- Repeat: counts again, so it is sent once.
-- Recovering: whole; it grants nothing anew.
local key, owner, known = KEYS[1], ARGV[2], tonumber(ARGV[5])
local field = owner .. ':write'
local count = tonumber(redis.call('hget', key, field) or '-1')
if count == -1 then
  redis.call('hdel', key, field)
  return {tonumber(ARGV[1]), -1, 0}
end
if count < known then return {tonumber(ARGV[1]), count, 0} end
if count > 1 then
  redis.call('hincrby', key, field, -1)
  if redis.call('pttl', key) < tonumber(ARGV[6]) then redis.call('pexpire', key, ARGV[6]) end
  return {tonumber(ARGV[1]), count - 1, 0}
end
local longest = 0
-- The timeout keys come first, because they are what may be refused: then nothing has changed.
for i = 1, math.min(tonumber(redis.call('hget', key, owner) or '0'), 1000) do
  longest = math.max(longest, redis.call('pttl', KEYS[2] .. owner .. ':rwlock_timeout:' .. i))
end
redis.call('hdel', key, field)
if longest > 0 then
  redis.call('hset', key, 'mode', 'read')
  redis.call('pexpire', key, longest)
else
  redis.call('del', key)
end
local heard = redis.pcall(ARGV[4], ARGV[3], '1')
if type(heard) == 'table' then heard = -1 end
return {tonumber(ARGV[1]), 0, heard}
