-- Read the settings of a rate limiter, and how many permits are free.
--
-- KEYS[1] settings   KEYS[2] free permits, shared   KEYS[3] free permits, of this client
-- KEYS[4] permits taken, shared                     KEYS[5] permits taken, of this client
-- ARGV[1] request number
--
-- Check:  nothing. The set of what was taken is as in rate_take.lua, and the free permits are counted as there.
-- Change: nothing.
-- Reply:  {number, 1, free, rate, interval, type, keep-alive time}; {number, -1} when nobody has set a rate;
--         {number, -3} when the hash is something else.
-- Repeat: harmless.
local n = tonumber(ARGV[1])
local set = redis.call('hmget', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local rate, interval = tonumber(set[1] or nil), tonumber(set[2] or nil)
if not (rate and interval and set[3]) then
  return {n, redis.call('exists', KEYS[1]) == 0 and -1 or -3}
end
local own = set[3] == '1'
local value, permits, base = KEYS[own and 3 or 2], KEYS[own and 5 or 4], own and rate or 0
local time = redis.call('time')
local old = time[1] * 1000 + math.floor(time[2] / 1000) - interval
local free, gone, taken = redis.call('get', value), 0, 0
if free and not tonumber(free) then return redis.error_reply('WRONGTYPE the free permits are no number') end
free = free and tonumber(free) + base
local all = redis.call('zrange', permits, 0, -1, 'withscores')
for i = 1, #all, 2 do
  local member = all[i]
  if #member ~= 5 + (string.byte(member) or 0) then
    return redis.error_reply('WRONGTYPE the permits were written in another format, by Redisson below 3.17')
  end
  local here = struct.unpack('<I4', member, #member - 3)
  if tonumber(all[i + 1]) <= old then gone = gone + here else taken = taken + here end
end
if not free or free + gone > rate or taken == 0 then free = rate - taken else free = free + gone end
return {n, 1, free, rate, interval, own and 1 or 0, tonumber(set[4] or nil) or 0}
