-- Release all read holds of an owner that belong to one lease.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys
-- ARGV[1] request number   ARGV[2] owner   ARGV[3] channel   ARGV[4] publish command
-- ARGV[5] only if the owner counts so many, as in release.lua
--
-- Check:  the owner field exists, in the hash of a read-write lock: a lock with one holder has a field like it. With a count: another one means that another process has come to hold under the owner. One whose
--         timeout keys have all ended is removed too, but was lost before (R5).
-- Change: the field and its timeout keys go. While the owner's own write hold stays, the TTL stays (R2). While other readers
--         stay, the TTL falls to what the longest of them needs; they are looked at only until one is found that needs all of
--         it. One look mostly finds it; then no more than that is asked. Otherwise it goes on only if the hold that went may have
--         been the one that set the TTL. When nobody is left, or nobody whose time has not ended, the hash goes and `0` is sent.
-- Reply:  {number, 1, receivers} when released (0: no message was due, -1: it was refused); {number, 0, 0} when nothing was
--         held any more, which is also what a repeat gets; {number, -1, count} when the owner counts another number.
-- Repeat: answers otherwise; the caller knows what its own request may have done.
local key, base, owner = KEYS[1], KEYS[2], ARGV[2]
local own = base .. owner .. ':rwlock_timeout:'
local held = redis.call('hmget', key, owner, 'mode')
local count = held[1]
if count and not held[2] then
  redis.call('hdel', key, '')
  return {tonumber(ARGV[1]), 0, 0}
end
if ARGV[5] and count and count ~= ARGV[5] then
  redis.call('hdel', key, '')
  return {tonumber(ARGV[1]), -1, tonumber(count)}
end
local found, ttl = redis.call('hdel', key, owner), redis.call('pttl', key)
-- Moments that lie this close together count as the same: servers before 7 let time go on while a script runs.
local enough = math.max(ttl - 10, 1)
if count == '1' and ttl >= 0 then
  -- The field `mode` and that of a writer have no such key, so neither is taken for a reader.
  local other = redis.call('hrandfield', key)
  local left = redis.call('pttl', base .. other .. ':rwlock_timeout:1')
  if left > 0 and left >= enough then
    return {tonumber(ARGV[1]), redis.call('del', own .. '1'), 0}
  end
end
count = math.min(tonumber(count or '1'), 1000)
local longest = 0
for i = 1, count do longest = math.max(longest, redis.call('pttl', own .. i)) end
for i = 1, count do redis.call('del', own .. i) end
if found == 0 then return {tonumber(ARGV[1]), 0, 0} end
local released, kept = 0, false
if longest > 0 then released = 1 end
if redis.call('hget', key, 'mode') == 'write' then
  kept = redis.call('hlen', key) > 1
elseif ttl >= 0 and longest > 0 and longest < enough and redis.call('hlen', key) > 1 then
  kept = true
else
  if ttl < 0 then enough = 9007199254740992 end
  local needed = needed_by_readers(key, base, enough)
  kept = needed > 0
  if kept and needed < enough then redis.call('pexpire', key, needed) end
end
if kept then return {tonumber(ARGV[1]), released, 0} end
redis.call('del', key)
local heard = redis.pcall(ARGV[4], ARGV[3], '0')
if type(heard) == 'table' then heard = -1 end
return {tonumber(ARGV[1]), released, heard}
