-- Pass the one read hold of an owner to another owner.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys   KEYS[3] token counter
-- ARGV[1] request number   ARGV[2] owner that takes   ARGV[3] lease in ms   ARGV[4] owner that gives
-- ARGV[5] 1 = also draw a token   ARGV[6] 2 = to an owner that it was taken from: nothing is a repeat
--
-- Check:  the giver has one read hold whose timeout key is there (R5), and no write hold; or the taker reads already (a repeat). What goes
--         back to an owner that has come to read again is one more hold of it.
-- Change: the token and the timeout keys come first, because they are what may be refused: then no lock has changed. The taker's hold
--         lasts for the lease, one that goes back for what was left, holds of a taker that reads for the longest; the giver's goes.
--         The TTL of the hash grows to that, or falls to what the longest reader needs if the giver's hold may be the one that had set it.
-- Reply:  {number, 1, token or 0}; {number, 2, 0} the giver has more than may be moved, and keeps it; {number, 0, ttl ms} when the giver
--         no longer read.
-- Repeat: harmless.
-- Recovering: waits; what it moves may have been given back, and that be missing.
local key, base, to, lease, from = KEYS[1], KEYS[2], ARGV[2], ARGV[3], ARGV[4]
local given, taken = base .. from .. ':rwlock_timeout:1', base .. to .. ':rwlock_timeout:'
local held = redis.call('hmget', key, from, to, from .. ':write')
local count, left = math.min(tonumber(held[2] or '0'), 1000), 0
for i = 1, count do left = math.max(left, redis.call('pttl', taken .. i)) end
local back, longest = ARGV[6] == '2', left
local repeated = left > 0 and not back
if not repeated then
  if left > 0 then count = count + 1 else count = 1 end
  left = 0
  if held[1] then left = redis.call('pttl', given) end
  if left <= 0 and (not held[1] or held[1] == '1') then
    -- A write that changes nothing: a server that has become a read-only replica refuses here.
    redis.call('hdel', key, '')
    return {tonumber(ARGV[1]), 0, redis.call('pttl', key)}
  end
  if held[1] ~= '1' or held[3] then
    redis.call('hdel', key, '')
    return {tonumber(ARGV[1]), 2, 0}
  end
end
local token = 0
if ARGV[5] == '1' then
  local now = redis.call('time')
  token = now[1] * 1000000 + now[2]
  local last = tonumber(redis.call('get', KEYS[3]) or '0')
  if last >= token then token = last + 1 end
  redis.call('set', KEYS[3], string.format('%.0f', token))
end
local moves, before = held[1] == '1' and not held[3] and from ~= to, 0
if moves then before = redis.call('pttl', given) end
if not back and longest < tonumber(lease) then left = lease else left = math.max(left, longest) end
for i = 1, count do redis.call('set', taken .. i, '1', 'px', left) end
local ttl = redis.call('pttl', key)
if ttl < tonumber(left) then redis.call('pexpire', key, left) end
if not repeated then redis.call('hset', key, to, count) end
if moves then
  redis.call('hdel', key, from)
  redis.call('del', given)
  -- Moments that lie this close together count as the same, as in read_release.
  local enough = ttl - 10
  if tonumber(left) < enough and before >= enough then
    local needed = needed_by_readers(key, base, enough)
    if needed < enough then redis.call('pexpire', key, string.format('%.0f', needed)) end
  end
end
return {tonumber(ARGV[1]), 1, token}
