-- Refresh many write holds in one call.
--
-- KEYS lock hashes   ARGV[1] batch number, echoed
-- ARGV[2] lease in ms, 0 to look only   ARGV[3…] the owner of each hash
--
-- Check:  each hash still has the owner's write field.
-- Change: the TTL grows to the lease and is never shortened, because a read hold of the same owner may need more. For those that are lost
--         a deletion that changes nothing, so that a read-only replica answers with an error.
-- Reply:  {batch, 1 or 0 for each key}.
-- Repeat: harmless.
local reply, lease = {tonumber(ARGV[1])}, tonumber(ARGV[2])
for i, key in ipairs(KEYS) do
  local field = ARGV[i + 2] .. ':write'
  if redis.call('hexists', key, field) == 1 then
    if lease > 0 and redis.call('pttl', key) < lease then redis.call('pexpire', key, ARGV[2]) end
    reply[i + 1] = 1
  else
    redis.call('hdel', key, field)
    reply[i + 1] = 0
  end
end
return reply
