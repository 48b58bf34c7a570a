-- Leave a hold for a time that may be shorter than what is left of it.
--
-- KEYS[1] lock hash   ARGV[1] request number   ARGV[2] owner   ARGV[3] time in ms
-- ARGV[4] only if another process may come to hold under the owner: the server's time in ms at which the hold ends that this is meant
--   for, or 0 to ask for that and change nothing
--
-- Check:  the hash has the owner's field, and is no read-write lock's, where that is a read hold. Its end has not come, after which what is
--         there is another process's, and is still the same: another process that has entered for longer may have it alone by now. Moments
--         that lie 10 ms together count as the same, because time may go on while a script runs.
-- Change: the TTL is set to the time. If the owner has entered more than once, another process may count on what is left: then it only
--         grows. What is lost is deleted once more, so that a read-only replica answers with an error.
-- Reply:  {number, 1} when it is held, {number, 2} when its end has moved and nothing was changed, {number, its end} when that was
--         asked for, otherwise {number, 0}.
-- Repeat: harmless.
local key, owner, ms = KEYS[1], ARGV[2], ARGV[3]
local now = false
if ARGV[4] then
  local clock = redis.call('time')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end
local held = redis.call('hmget', key, owner, 'mode')
if not held[1] or held[2] or (now and ARGV[4] ~= '0' and now >= tonumber(ARGV[4])) then
  redis.call('hdel', key, '')
  return {tonumber(ARGV[1]), 0}
end
local ends = now and now + redis.call('pttl', key)
if ARGV[4] == '0' then return {tonumber(ARGV[1]), ends} end
if now and math.abs(ends - tonumber(ARGV[4])) > 10 then
  redis.call('hdel', key, '')
  return {tonumber(ARGV[1]), 2}
end
if held[1] == '1' or redis.call('pttl', key) < tonumber(ms) then redis.call('pexpire', key, ms) end
return {tonumber(ARGV[1]), 1}
