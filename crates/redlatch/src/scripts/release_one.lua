-- Give back one of several holds of one owner, or the last one.
--
-- KEYS[1] lock hash   ARGV[1] request number   ARGV[2] owner field   ARGV[3] channel   ARGV[4] publish command, '' to tell nobody
-- ARGV[5] the count before this release, or 0 when unknown   ARGV[6] lease in ms for the holds that stay
--
-- Check:  the owner field exists, in a hash that is no read-write lock's. A count below the known one means that this request ran before (a repeat).
-- Change: the count shrinks by one and the lease is kept or raised; at zero the field goes and one message is sent.
-- Reply:  {number, holds left, receivers}; {number, -1, 0} when the owner holds nothing.
-- Repeat: counts again, so it is sent once.
-- Recovering: whole; it grants nothing anew.
local key, owner, known = KEYS[1], ARGV[2], tonumber(ARGV[5])
local held = redis.call('hmget', key, owner, 'mode')
local count = not held[2] and tonumber(held[1] or '-1') or -1
if count == -1 then
  redis.call('hdel', key, held[2] and '' or owner)
  return {tonumber(ARGV[1]), -1, 0}
end
if count < known then return {tonumber(ARGV[1]), count, 0} end
if count > 1 then
  redis.call('hincrby', key, owner, -1)
  if tonumber(ARGV[6]) > redis.call('pttl', key) then redis.call('pexpire', key, ARGV[6]) end
  return {tonumber(ARGV[1]), count - 1, 0}
end
redis.call('hdel', key, owner)
local heard = ARGV[4] == '' and 0 or redis.pcall(ARGV[4], ARGV[3], '0')
if type(heard) == 'table' then heard = -1 end
return {tonumber(ARGV[1]), 0, heard}
