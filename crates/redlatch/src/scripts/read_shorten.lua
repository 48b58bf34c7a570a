-- Leave a read hold for a time that may be shorter than what is left of it.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys
-- ARGV[1] request number   ARGV[2] owner   ARGV[3] time in ms   ARGV[4] as in shorten.lua
--
-- Check:  the hash of a read-write lock has the owner's field, and one of its timeout keys is there (R5); its end has not
--         come and is still the same, as in shorten.lua.
-- Change: the timeout key is set to the time, and the TTL of the hash falls to what the longest reader needs, if this hold may be the one
--         that had set it; while the owner writes, the TTL stays. If the owner reads more than once, another process may count on what is
--         left: then both only grow.
-- Reply:  as in shorten.lua.
-- Repeat: harmless.
local key, base, owner, time = KEYS[1], KEYS[2], ARGV[2], tonumber(ARGV[3])
local own = base .. owner .. ':rwlock_timeout:'
local held = redis.call('hmget', key, owner, 'mode')
local count, longest = 0, 0
if held[2] then count = math.min(tonumber(held[1] or '0'), 1000) end
for i = 1, count do longest = math.max(longest, redis.call('pttl', own .. i)) end
local now = false
if ARGV[4] then
  local clock = redis.call('time')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end
if longest == 0 or (now and ARGV[4] ~= '0' and now >= tonumber(ARGV[4])) then
  -- A server that has become a read-only replica refuses here.
  redis.call('hdel', key, '')
  return {tonumber(ARGV[1]), 0}
end
if ARGV[4] == '0' then return {tonumber(ARGV[1]), now + longest} end
if now and math.abs(now + longest - tonumber(ARGV[4])) > 10 then
  redis.call('hdel', key, '')
  return {tonumber(ARGV[1]), 2}
end
for i = 1, count do
  local left = redis.call('pttl', own .. i)
  if left > 0 and (count == 1 or left < time) then redis.call('pexpire', own .. i, ARGV[3]) end
end
local ttl = redis.call('pttl', key)
-- Moments that lie this close together count as the same, as in read_release.
local enough = ttl - 10
if ttl < 0 then enough = 9007199254740992 end
if ttl >= 0 and ttl < time then
  redis.call('pexpire', key, ARGV[3])
elseif held[2] ~= 'write' and time < enough and longest >= ttl - 10 then
  local needed = math.max(time, needed_by_readers(key, base, enough))
  if needed < enough then redis.call('pexpire', key, string.format('%.0f', needed)) end
end
return {tonumber(ARGV[1]), 1}
