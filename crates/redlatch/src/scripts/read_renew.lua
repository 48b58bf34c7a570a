-- Refresh the read holds of many owners in one call.
--
-- KEYS for each hold: the lock hash, the beginning of its timeout keys
-- ARGV[1] request number   ARGV[2] lease in ms, 0 to look only
-- ARGV[3…] the owner of each hold, then, where the holds differ in it, the lease of each
--
-- Check:  each hash has the owner's field, and one of its timeout keys is there: a hold whose keys have all ended is lost even if
--         other readers keep the hash (R5).
-- Change: the timeout keys of this owner, and of no other (R11), and the TTL of the hash grow to the lease; nothing is shortened,
--         because another hold may need more. Java's renewals shorten them, so a look says what is left of each hold. The field of a hold that is lost goes if it is not the last one.
-- Reply:  {batch, 1 or 0 for each hold}; 2 as in renew.lua.
-- Repeat: harmless.
local reply, holds = {tonumber(ARGV[1])}, #KEYS / 2
for at = 1, holds do
  local key, owner = KEYS[2 * at - 1], ARGV[at + 2]
  local lease = tonumber(ARGV[at + 2 + holds] or ARGV[2])
  local ms = string.format('%.0f', lease)
  local own = KEYS[2 * at] .. owner .. ':rwlock_timeout:'
  local longest = 0
  local count = math.min(tonumber(redis.call('hget', key, owner) or '0'), 1000)
  for i = 1, count do
    local left = redis.call('pttl', own .. i)
    if left > 0 and left < lease then redis.call('pexpire', own .. i, ms) end
    longest = math.max(longest, left)
  end
  if longest > 0 then
    reply[at + 1] = 1
    if redis.call('pttl', key) < lease then
      redis.call('pexpire', key, ms)
      if ARGV[at + 2 + holds] then reply[at + 1] = 2 end
    end
  else
    -- Also a write that a read-only replica refuses, instead of a false "no longer held".
    if count == 0 or redis.call('hlen', key) > 2 then redis.call('hdel', key, owner) end
    reply[at + 1] = 0
  end
end
return reply
