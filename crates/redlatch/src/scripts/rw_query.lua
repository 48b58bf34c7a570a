-- Answer the simple questions about one side of a read-write lock.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys   ARGV[1] owner, or ''   ARGV[2] 'read' or 'write'
--
-- Check and change: nothing; only reads. The read side is also locked under a write hold when its owner has read holds besides. A
--         reader whose timeout keys have all ended has no holds (R5).
-- Reply:  {ttl ms (-2: this side is free, -1: without end), holds of the owner}.
-- Repeat: harmless.
local key, owner = KEYS[1], ARGV[1]
local mode, ttl = redis.call('hget', key, 'mode'), redis.call('pttl', key)
if ARGV[2] == 'write' then
  if mode ~= 'write' then return {-2, 0} end
  return {ttl, tonumber(redis.call('hget', key, owner .. ':write') or '0')}
end
if mode ~= 'read' and not (mode == 'write' and redis.call('hlen', key) > 2) then return {-2, 0} end
local count, longest = tonumber(redis.call('hget', key, owner) or '0'), 0
for i = 1, math.min(count, 1000) do
  longest = math.max(longest, redis.call('pttl', KEYS[2] .. owner .. ':rwlock_timeout:' .. i))
end
if longest == 0 then count = 0 end
return {ttl, count}
