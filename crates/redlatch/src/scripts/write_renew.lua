-- Refresh many write holds in one call.
--
-- KEYS lock hashes   ARGV[1] request number
-- ARGV[2] lease in ms, 0 to look only   ARGV[3…] the owner of each hash, then, where the holds differ in it, the lease of each
--
-- Check:  each hash still has the owner's write field.
-- Change: the TTL grows to the lease and is never shortened, because a read hold of the same owner may need more. For those that are lost
--         a deletion that changes nothing, so that a read-only replica answers with an error.
-- Reply:  {batch, 1 or 0 for each key}; 2 as in renew.lua.
-- Repeat: harmless.
local reply = {tonumber(ARGV[1])}
for i, key in ipairs(KEYS) do
  local field, ms = ARGV[i + 2] .. ':write', ARGV[i + 2 + #KEYS] or ARGV[2]
  if redis.call('hexists', key, field) == 1 then
    reply[i + 1] = 1
    if tonumber(ms) > 0 and redis.call('pttl', key) < tonumber(ms) then
      redis.call('pexpire', key, ms)
      if ARGV[i + 2 + #KEYS] then reply[i + 1] = 2 end
    end
  else
    redis.call('hdel', key, field)
    reply[i + 1] = 0
  end
end
return reply
