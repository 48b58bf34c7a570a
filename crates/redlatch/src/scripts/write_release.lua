-- Release the write hold of one owner.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys
-- ARGV[1] request number   ARGV[2] owner   ARGV[3] channel   ARGV[4] publish command
-- ARGV[5] only if the owner counts so many, as in release.lua
--
-- Check:  only with a count: another one means that another process has come to hold under the owner.
-- Change: HDEL removes the owner's write field. If read holds of the owner stay, the lock is theirs from now
--         on: mode read, with the TTL that they need. Otherwise the hash goes. Either way others may come in, so `1` is sent,
--         which wakes all waiters of a Java client (R6).
-- Reply:  {number, 1, receivers} when released (receivers -1: the message was refused); {number, 0, 0} when nothing was held,
--         which is also what a repeat gets; {number, -1, count} when it counts another number.
-- Repeat: answers otherwise; the caller knows what its own request may have done.
-- Recovering: whole; it grants nothing anew.
local key, owner = KEYS[1], ARGV[2]
if ARGV[5] then
  local writes = redis.call('hget', key, owner .. ':write')
  if writes and writes ~= ARGV[5] then
    redis.call('hdel', key, '')
    return {tonumber(ARGV[1]), -1, tonumber(writes)}
  end
end
local longest = 0
-- The timeout keys come first, because they are what may be refused: then nothing has changed.
for i = 1, math.min(tonumber(redis.call('hget', key, owner) or '0'), 1000) do
  longest = math.max(longest, redis.call('pttl', KEYS[2] .. owner .. ':rwlock_timeout:' .. i))
end
if redis.call('hdel', key, owner .. ':write') == 0 then return {tonumber(ARGV[1]), 0, 0} end
if longest > 0 then
  redis.call('hset', key, 'mode', 'read')
  redis.call('pexpire', key, longest)
else
  redis.call('del', key)
end
local heard = redis.pcall(ARGV[4], ARGV[3], '1')
if type(heard) == 'table' then heard = -1 end
return {tonumber(ARGV[1]), 1, heard}
