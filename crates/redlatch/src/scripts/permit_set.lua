-- Set how many leased permits there are, or change it.
--
-- KEYS[1] free permits     ARGV[1] request number   ARGV[2] permits   ARGV[3] channel   ARGV[4] publish command
-- KEYS[2] permits taken    ARGV[5] 'absent' = set if nobody has, 'total' = free and taken together, 'add' = so many more
--
-- Check:  whether there is a counter.
-- Change: permits whose time is up go back first, by the server's clock. Then SET when there was no counter, to the total less what is
--         taken still, where only the counter had gone, and what is taken lives as long as the new one; else INCRBY, which keeps a time to live, by what is missing to the total or by the change. One message says how many are free
--         then, if anybody can take from that and there was a change.
-- Reply:  {number, 1, free}; {number, 0, free} when nothing was to be changed.
-- Repeat: counts again, so it is sent once.
-- Recovering: whole; it grants nothing anew.
local counter, taken, n, how = KEYS[1], KEYS[2], tonumber(ARGV[1]), ARGV[5]
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local free = redis.call('get', counter)
if free and not string.find(free, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE the key holds no number')
end
local total = tonumber(free or 0)
if free and how == 'absent' then return {n, 0, total} end
local change = redis.call('zremrangebyscore', taken, '-inf', now)
if how == 'total' and free then
  change = tonumber(ARGV[2]) - redis.call('zcard', taken) - total
else
  change = change + tonumber(ARGV[2])
end
if not free then
  total = tonumber(ARGV[2])
  if how ~= 'add' then total = total - redis.call('zcard', taken) end
  redis.call('set', counter, string.format('%.0f', total))
  if redis.call('pttl', taken) >= 0 then redis.pcall('persist', taken) end
elseif change ~= 0 then
  total = redis.call('incrby', counter, string.format('%.0f', change))
else
  return {n, 0, total}
end
if total > 0 then redis.pcall(ARGV[4], ARGV[3], string.format('%.0f', total)) end
return {n, 1, total}
