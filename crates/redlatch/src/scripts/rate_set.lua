-- Set or change the rate of a rate limiter.
--
-- KEYS[1] settings   KEYS[2] free permits, shared   KEYS[3] free permits, of this client
-- KEYS[4] permits taken, shared                     KEYS[5] permits taken, of this client
-- ARGV[1] request number   ARGV[2] rate   ARGV[3] interval in ms   ARGV[4] 0 = shared, 1 = for each client
-- ARGV[5] keep-alive time in ms, 0 for none   ARGV[6] absent, always, or present: when to do it
--
-- Check:  the settings are absent or present as asked for, and the key is nothing else.
-- Change: the four fields. "always" forgets what was taken, and so does "present" with another kind; otherwise "present"
--         counts the free permits anew: the new rate less what was taken in the new interval, and without the rate where it
--         is for each client (see rate_take.lua). A time to live that came from a keep-alive time changes with it; one that
--         another client has set stays.
-- Reply:  {number, 1, 0}; {number, 0, 0} when it is not the case that was asked for; {number, -3, 0} when the hash is
--         something else.
-- Repeat: answers otherwise, so it is sent once.
-- Recovering: in parts; what is refused comes before anything has changed.
local n, rate, interval, case = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[6]
local set = redis.call('hmget', KEYS[1], 'type', 'keepAliveTime')
if not set[1] and redis.call('exists', KEYS[1]) == 1 then return {n, -3, 0} end
if case == (set[1] and 'absent' or 'present') then return {n, 0, 0} end
local own = ARGV[4] == '1'
local value, permits = KEYS[own and 3 or 2], KEYS[own and 5 or 4]

local keep = case == 'present' and set[1] == ARGV[4]
local taken, old = 0, nil
if keep then
  local time = redis.call('time')
  old = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) - interval)
  for _, member in ipairs(redis.call('zrangebyscore', permits, '(' .. old, '+inf')) do
    if #member ~= 5 + (string.byte(member) or 0) then
      return redis.error_reply('WRONGTYPE the permits were written in another format, by Redisson below 3.17')
    end
    taken = taken + struct.unpack('<I4', member, #member - 3)
  end
end

redis.call('hset', KEYS[1], 'rate', ARGV[2], 'interval', ARGV[3], 'type', ARGV[4], 'keepAliveTime', ARGV[5])
if tonumber(ARGV[5]) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[5])
elseif (tonumber(set[2] or nil) or 0) > 0 then
  redis.call('persist', KEYS[1])
  redis.call('persist', permits)
end
if keep then
  redis.call('zremrangebyscore', permits, '-inf', old)
  redis.call('set', value, string.format('%.0f', (own and 0 or rate) - taken))
  local ttl = redis.call('pttl', KEYS[1])
  if ttl > 0 then
    redis.call('pexpire', value, ttl)
    redis.call('pexpire', permits, ttl)
  end
elseif case ~= 'absent' then
  redis.call('del', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
end
return {n, 1, 0}
