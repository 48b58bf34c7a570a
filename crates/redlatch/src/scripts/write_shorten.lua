-- Leave a write hold for a time that may be shorter than what is left of it.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys
-- ARGV[1] request number   ARGV[2] owner   ARGV[3] time in ms   ARGV[4] as in shorten.lua
--
-- Check:  the hash has the owner's write field, and its end has not come and is still the same, as in shorten.lua.
-- Change: the TTL falls to the time, or to what the owner's own read holds need if that is longer. If the owner writes more than once,
--         another process may count on what is left: then it only grows.
-- Reply:  as in shorten.lua.
-- Repeat: harmless.
local key, owner, needed = KEYS[1], ARGV[2], tonumber(ARGV[3])
local field = owner .. ':write'
local now = false
if ARGV[4] then
  local clock = redis.call('time')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end
local held = redis.call('hmget', key, field, owner)
if not held[1] or (now and ARGV[4] ~= '0' and now >= tonumber(ARGV[4])) then
  -- A server that has become a read-only replica refuses here.
  redis.call('hdel', key, '')
  return {tonumber(ARGV[1]), 0}
end
local ends = now and now + redis.call('pttl', key)
if ARGV[4] == '0' then return {tonumber(ARGV[1]), ends} end
if now and math.abs(ends - tonumber(ARGV[4])) > 10 then
  redis.call('hdel', key, '')
  return {tonumber(ARGV[1]), 2}
end
for i = 1, math.min(tonumber(held[2] or '0'), 1000) do
  needed = math.max(needed, redis.call('pttl', KEYS[2] .. owner .. ':rwlock_timeout:' .. i))
end
if held[1] == '1' or redis.call('pttl', key) < needed then
  redis.call('pexpire', key, string.format('%.0f', needed))
end
return {tonumber(ARGV[1]), 1}
