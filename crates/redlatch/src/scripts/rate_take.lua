-- Take permits of a rate limiter, all that were asked for or none.
--
-- KEYS[1] settings   KEYS[2] free permits, shared   KEYS[3] free permits, of this client
-- KEYS[4] permits taken, shared                     KEYS[5] permits taken, of this client
-- ARGV[1] request number   ARGV[2] permits   ARGV[3] id of this grant, at most 255 bytes
--
-- Check:  the settings are there and the rate covers the permits. What was taken is in a sorted set, score = when, in ms of
--         the server's clock; a member is a length, an id of that many bytes, and the permits in 4 bytes. What is older
--         than the interval is free again. A shared number of free permits is as Redisson has it; a client's own number is
--         written without the rate, so that it follows when another client changes the rate. They are counted anew (rate
--         less what is taken) when there is no number, when it would exceed the rate, and when nothing is taken. Members of
--         another form are refused; the oldest is looked at every time.
-- Change: what has become free leaves the set, which a read-only replica refuses even when there is nothing; a time ahead
--         of the server's clock becomes now, so that a clock that was set back blocks nobody for longer than the interval;
--         the grant is added; the times to live follow the keep-alive time, else that of the settings. Where there is
--         neither, a client's own keys have none; shared ones have lost it when the settings did.
-- Reply:  {number, 1, permits left}; {number, 0, ms until enough may be free}; {number, -1, 0} when nobody has set a rate;
--         {number, -2, rate} when it is below the permits; {number, -3, 0} when the hash is something else.
-- Repeat: counts again, and is undone by its id.
-- Recovering: waits; it takes away before it may grant.
local n, want = tonumber(ARGV[1]), tonumber(ARGV[2])
local set = redis.call('hmget', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local rate, interval = tonumber(set[1] or nil), tonumber(set[2] or nil)
if not (rate and interval and set[3]) then
  return {n, redis.call('exists', KEYS[1]) == 0 and -1 or -3, 0}
end
if want > rate then return {n, -2, rate} end
local own = set[3] == '1'
local value, permits, base = KEYS[own and 3 or 2], KEYS[own and 5 or 4], own and rate or 0

local function count(members)
  local total = 0
  for _, member in ipairs(members) do
    if #member ~= 5 + (string.byte(member) or 0) then return nil end
    total = total + struct.unpack('<I4', member, #member - 3)
  end
  return total
end

local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local old = string.format('%.0f', now - interval)
local free = redis.call('get', value)
if free and not tonumber(free) then return redis.error_reply('WRONGTYPE the free permits are no number') end
free = free and tonumber(free) + base
local gone = count(redis.call('zrangebyscore', permits, '-inf', old))
local taken = 0
if gone and (not free or free + gone > rate) then
  taken = count(redis.call('zrangebyscore', permits, '(' .. old, '+inf'))
end
if not (gone and taken and count(redis.call('zrange', permits, 0, 0))) then
  return redis.error_reply('WRONGTYPE the permits were written in another format, by Redisson below 3.17')
end
local recounted = not free or gone > 0 or free > rate
if not free or free + gone > rate then free = rate - taken else free = free + gone end

redis.call('zremrangebyscore', permits, '-inf', old)
for _, member in ipairs(redis.call('zrangebyscore', permits, '(' .. string.format('%.0f', now), '+inf')) do
  redis.call('zadd', permits, now, member)
end
if free < want and redis.call('zcard', permits) == 0 then
  free = rate
  recounted = true
end
if recounted then redis.call('set', value, string.format('%.0f', free - base)) end

local reply
if free < want then
  -- The oldest come free first. Looking at a hundred of them bounds the work; then the answer is a time to look again.
  local missing, at = want - free, now
  local oldest = redis.call('zrange', permits, 0, 99, 'withscores')
  for i = 1, #oldest, 2 do
    at = tonumber(oldest[i + 1])
    missing = missing - (count({oldest[i]}) or 0)
    if missing <= 0 then break end
  end
  reply = {n, 0, at + interval - now}
else
  redis.call('zadd', permits, now, struct.pack('<Bc0I4', #ARGV[3], ARGV[3], want))
  reply = {n, 1, redis.call('decrby', value, want) + base}
end

local ttl = tonumber(set[4] or nil) or 0
if ttl > 0 then redis.call('pexpire', KEYS[1], set[4]) else ttl = redis.call('pttl', KEYS[1]) end
if ttl > 0 then
  redis.call('pexpire', value, ttl)
  redis.call('pexpire', permits, ttl)
elseif own then
  redis.call('persist', value)
  redis.call('persist', permits)
end
return reply
