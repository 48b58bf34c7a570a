-- Refresh the leases of many locks in one call.
--
-- KEYS lock hashes   ARGV[1] request number
-- ARGV[2] lease in ms, 0 to look only   ARGV[3…] the owner field of each key, then, where the holds differ in it, the lease of each
--
-- Check:  each hash still has the owner's field, and is no read-write lock's, where that is a read hold.
-- Change: the TTL of those that do grows to the lease; it never shrinks, because its holder may count on an extension that was
--         longer than this renewal. Others may have cut it down (Java's multi-locks, an operator's PEXPIRE), so a look says what is left of
--         each hold. For the others a deletion that changes nothing, so that a read-only replica
--         answers with an error instead of a false "no longer held".
-- Reply:  {batch, 1 or 0 for each key}; 2 when a look has raised the TTL, which ends the watching of the key by its own connection.
-- Repeat: harmless.
local reply = {tonumber(ARGV[1])}
for i, key in ipairs(KEYS) do
  local owner, ms = ARGV[i + 2], ARGV[i + 2 + #KEYS] or ARGV[2]
  local held = redis.call('hmget', key, owner, 'mode')
  if held[1] and not held[2] then
    reply[i + 1] = 1
    if tonumber(ms) > 0 and redis.call('pttl', key) < tonumber(ms) then
      redis.call('pexpire', key, ms)
      if ARGV[i + 2 + #KEYS] then reply[i + 1] = 2 end
    end
  else
    redis.call('hdel', key, held[2] and '' or owner)
    reply[i + 1] = 0
  end
end
return reply
