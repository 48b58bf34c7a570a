-- Refresh the leases of many locks in one call.
--
-- KEYS lock hashes   ARGV[1] batch number, echoed
-- ARGV[2] lease in ms, 0 to look only   ARGV[3…] the owner field of each key
--
-- Check:  each hash still has the owner's field, and is no read-write lock's, where that is a read hold.
-- Change: the TTL of those that do grows to the lease; it never shrinks, because its holder may count on an extension that was
--         longer than this renewal. For the others a deletion that changes nothing, so that a read-only replica
--         answers with an error instead of a false "no longer held".
-- Reply:  {batch, 1 or 0 for each key}.
-- Repeat: harmless.
local reply, lease = {tonumber(ARGV[1])}, tonumber(ARGV[2])
for i, key in ipairs(KEYS) do
  local owner = ARGV[i + 2]
  local held = redis.call('hmget', key, owner, 'mode')
  if held[1] and not held[2] then
    if lease > 0 and redis.call('pttl', key) < lease then redis.call('pexpire', key, ARGV[2]) end
    reply[i + 1] = 1
  else
    redis.call('hdel', key, held[2] and '' or owner)
    reply[i + 1] = 0
  end
end
return reply
