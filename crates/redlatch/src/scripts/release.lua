-- Release a lock whose owner field belongs to one process alone.
--
-- KEYS[1] lock hash   ARGV[1] request number   ARGV[2] owner field   ARGV[3] channel   ARGV[4] publish command, '' to tell nobody
-- ARGV[5] only if the owner counts so many, because it may be handed to other processes meanwhile; otherwise absent
--
-- Check:  only with a count: another one means that another process has come to hold under the owner. The hash of a read-write lock has
--         no hold of this kind, though its owner may read there.
-- Change: HDEL removes the owner field, and with the only field the hash goes too.
--         Deleting comes first because it is allowed when memory is full; the message goes through pcall because
--         an account without publish rights must still be able to release.
-- Reply:  {number, 1, receivers} when released (receivers -1: the message was refused); {number, 0, 0} when the owner
--         held nothing, which is also what a repeat of the same request gets; {number, -1, count} when it counts another number.
-- Repeat: answers otherwise; the caller knows what its own request may have done.
if ARGV[5] then
  local held = redis.call('hmget', KEYS[1], ARGV[2], 'mode')
  local count = held[1]
  if held[2] then
    redis.call('hdel', KEYS[1], '')
    return {tonumber(ARGV[1]), 0, 0}
  end
  if count and count ~= ARGV[5] then
    -- A write that changes nothing: a server that has become a read-only replica refuses here.
    redis.call('hdel', KEYS[1], '')
    return {tonumber(ARGV[1]), -1, tonumber(count)}
  end
end
if redis.call('hdel', KEYS[1], ARGV[2]) == 0 then
  return {tonumber(ARGV[1]), 0, 0}
end
local heard = ARGV[4] == '' and 0 or redis.pcall(ARGV[4], ARGV[3], '0')
if type(heard) == 'table' then heard = -1 end
return {tonumber(ARGV[1]), 1, heard}
