-- Give permits of a rate limiter back before their interval is over.
--
-- KEYS[1] settings   KEYS[2] free permits, shared   KEYS[3] free permits, of this client
-- KEYS[4] permits taken, shared                     KEYS[5] permits taken, of this client
-- ARGV[1] request number   ARGV[2] permits   ARGV[3] id of the grant that is undone, or nothing for the oldest permits
--
-- Check:  the settings are there. The set of what was taken, and the number of free permits, are as in rate_take.lua.
-- Change: what is given back leaves the set, so that it does not come free a second time when it gets old. Without an id
--         the oldest go: nobody says whose they were, and those who stay then block for as long as they may have to. A
--         grant that was given back in part stays with the rest. The free permits rise by as much, up to the rate; where
--         there is no number, the set alone says what is free.
-- Reply:  {number, 1, permits given back}; {number, -1, 0} when nobody has set a rate; {number, -3, 0} when the hash is
--         something else.
-- Repeat: counts again where no id is named, so it is sent once.
-- Recovering: whole; it grants nothing anew.
local n, want, id = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local set = redis.call('hmget', KEYS[1], 'rate', 'interval', 'type')
local rate, interval = tonumber(set[1] or nil), tonumber(set[2] or nil)
if not (rate and interval and set[3]) then
  return {n, redis.call('exists', KEYS[1]) == 0 and -1 or -3, 0}
end
local own = set[3] == '1'
local value, permits, base = KEYS[own and 3 or 2], KEYS[own and 5 or 4], own and rate or 0
local free = redis.call('get', value)
if free and not tonumber(free) then return redis.error_reply('WRONGTYPE the free permits are no number') end

local back = 0
if id ~= '' then
  back = redis.call('zrem', permits, struct.pack('<Bc0I4', #id, id, want)) * want
else
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  -- What is old enough to be free again is left to the next who takes.
  local from = '(' .. string.format('%.0f', now - interval)
  local oldest = redis.call('zrangebyscore', permits, from, '+inf', 'withscores', 'limit', 0, want)
  for i = 1, #oldest, 2 do
    local member, head = oldest[i], string.byte(oldest[i]) or 0
    if #member ~= 5 + head then
      return redis.error_reply('WRONGTYPE the permits were written in another format, by Redisson below 3.17')
    end
    local here = struct.unpack('<I4', member, #member - 3)
    local some = math.min(here, want - back)
    redis.call('zrem', permits, member)
    if some < here then
      redis.call('zadd', permits, oldest[i + 1], string.sub(member, 1, -5) .. struct.pack('<I4', here - some))
    end
    back = back + some
    if back == want then break end
  end
end
if free and back > 0 then
  redis.call('incrby', value, string.format('%.0f', math.max(0, math.min(back, rate - base - tonumber(free)))))
end
return {n, 1, back}
