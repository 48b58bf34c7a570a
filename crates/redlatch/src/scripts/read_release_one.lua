-- Give back one of several read holds of one owner, or the last one.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys
-- ARGV[1] request number   ARGV[2] owner   ARGV[3] channel   ARGV[4] publish command
-- ARGV[5] the count before this release, or 0 when unknown   ARGV[6] lease in ms for the holds that stay
--
-- Check:  the owner field exists in the hash of a read-write lock, and one of its timeout keys does (R5). A count below the known one means that this request ran
--         before (a repeat).
-- Change: above one hold the newest timeout key goes; the others keep the longer of what was left and the lease, and the TTL of
--         the hash only grows. The last hold goes as in read_release.
-- Reply:  {number, holds left, receivers}; {number, -1, 0} when the owner holds nothing.
-- Repeat: counts again, so it is sent once.
-- Recovering: whole; it grants nothing anew.
local key, base, owner, known = KEYS[1], KEYS[2], ARGV[2], tonumber(ARGV[5])
local own = base .. owner .. ':rwlock_timeout:'
local held = redis.call('hmget', key, owner, 'mode')
held = held[2] and held[1]
local count, longest = tonumber(held or '1'), 0
local looked = math.min(count, 1000)
for i = 1, looked do longest = math.max(longest, redis.call('pttl', own .. i)) end
if not held then
  redis.call('del', own .. '1')
  return {tonumber(ARGV[1]), -1, 0}
end
local ttl = redis.call('pttl', key)
if longest > 0 and count < known then return {tonumber(ARGV[1]), count, 0} end
if longest > 0 and count > 1 then
  redis.call('hincrby', key, owner, -1)
  redis.call('del', own .. count)
  if longest < tonumber(ARGV[6]) then longest = ARGV[6] end
  for i = 1, math.min(count - 1, 1000) do redis.call('pexpire', own .. i, longest) end
  if ttl < tonumber(longest) then redis.call('pexpire', key, longest) end
  return {tonumber(ARGV[1]), count - 1, 0}
end
redis.call('hdel', key, owner)
for i = 1, looked do redis.call('del', own .. i) end
local left, kept = 0, false
if longest == 0 then left = -1 end
if redis.call('hlen', key) > 1 then
  local enough = math.max(ttl - 10, 1)
  if redis.call('hget', key, 'mode') == 'write' or (ttl >= 0 and longest > 0 and longest < enough) then
    kept = true
  else
    if ttl < 0 then enough = 9007199254740992 end
    local needed = needed_by_readers(key, base, enough)
    kept = needed > 0
    if kept and needed < enough then redis.call('pexpire', key, needed) end
  end
end
if kept then return {tonumber(ARGV[1]), left, 0} end
redis.call('del', key)
local heard = redis.pcall(ARGV[4], ARGV[3], '0')
if type(heard) == 'table' then heard = -1 end
return {tonumber(ARGV[1]), left, heard}
