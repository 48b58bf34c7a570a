-- Take leased permits, all that were asked for or none.
--
-- KEYS[1] free permits     ARGV[1] request number   ARGV[2] ids, 16 bytes each   ARGV[3] lease in ms
-- KEYS[2] permits taken    ARGV[4] channel        ARGV[5] publish command
--
-- Check:  permits were set, and cover those ids that are not taken already: asking again with the same ids counts once.
--         Permits whose time is up go back first, by the server's clock, and that is told.
-- Change: DECRBY, and one member for each id with the time at which it ends. A repeat may come late, and shortens nothing. A lease that reaches the score for "never"
--         gets that score. The members live as long as the counter. DECRBY is the first write, because it is refused
--         when memory is full and nothing may have changed then; a repeat takes 0, so that replicas can be waited for.
-- Reply:  {number, permits, permits still free} taken; {number, 0, ms until the next one ends or -1} too few are free; {number, -3, 0}
--         nobody has set permits. A refusal removes a member that is not there, so that a read-only replica answers with
--         an error instead of letting the caller wait.
-- Repeat: harmless.
-- Recovering: waits; it takes away before it may grant.
local never = 922337203685477
local counter, taken, n, ids = KEYS[1], KEYS[2], tonumber(ARGV[1]), ARGV[2]
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local free = redis.call('get', counter)
if not free then
  redis.call('zrem', taken, '')
  return {n, -3, 0}
end
if not string.find(free, '^-?%d+$') then return redis.error_reply('WRONGTYPE the key holds no number') end
free = tonumber(free)
if redis.call('zcount', taken, '-inf', now) > 0 then
  free = redis.call('incrby', counter, redis.call('zremrangebyscore', taken, '-inf', now))
  if free > 0 then redis.pcall(ARGV[5], ARGV[4], string.format('%.0f', free)) end
end
local wanted = 0
for at = 1, #ids, 16 do
  if not redis.call('zscore', taken, string.sub(ids, at, at + 15)) then wanted = wanted + 1 end
end
if wanted > 0 and free < wanted then
  redis.call('zrem', taken, '')
  local first = redis.call('zrange', taken, 0, 0, 'withscores')
  local ends = tonumber(first[2] or never)
  return {n, 0, ends < never and ends - now or -1}
end
redis.call('decrby', counter, wanted)
-- Rounded up, so that the lease is never shorter than asked for.
local ends = string.format('%.0f', math.min(now + 1 + tonumber(ARGV[3]), never))
for at = 1, #ids, 16 do
  local id = string.sub(ids, at, at + 15)
  if tonumber(redis.call('zscore', taken, id) or '0') < tonumber(ends) then redis.call('zadd', taken, ends, id) end
end
local ttl = redis.call('pttl', counter)
if ttl >= 0 then
  redis.call('pexpire', taken, ttl)
elseif redis.call('pttl', taken) >= 0 then
  redis.pcall('persist', taken)
end
return {n, #ids / 16, free - wanted}
