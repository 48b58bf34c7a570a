-- Leave a hold for a time that may be shorter than what is left of it.
--
-- KEYS[1] lock hash   ARGV[1] number, echoed   ARGV[2] owner   ARGV[3] time in ms
--
-- Check:  the hash has the owner's field, and is no read-write lock's, where that is a read hold.
-- Change: the TTL is set to the time. If the owner has entered more than once, another process may count on what is left: then it only
--         grows. What is lost is deleted once more, so that a read-only replica answers with an error.
-- Reply:  {number, 1} when it is held, otherwise {number, 0}.
-- Repeat: harmless.
local key, owner, ms = KEYS[1], ARGV[2], ARGV[3]
local held = redis.call('hmget', key, owner, 'mode')
if not held[1] or held[2] then
  redis.call('hdel', key, held[2] and '' or owner)
  return {tonumber(ARGV[1]), 0}
end
if held[1] == '1' or redis.call('pttl', key) < tonumber(ms) then redis.call('pexpire', key, ms) end
return {tonumber(ARGV[1]), 1}
