-- Count leased permits, and look how long one of them is taken.
--
-- KEYS[1] free permits     ARGV[1] request number   ARGV[2] id, 16 bytes, or '' for none
-- KEYS[2] permits taken    ARGV[3] channel       ARGV[4] publish command
--
-- Check:  nothing.
-- Change: permits whose time is up go back, by the server's clock, and that is told. Those of a counter that is gone are
--         not counted, or it would come back with too few.
-- Reply:  {number, free, taken, ms left of the id}: -1 it never ends, -2 it is not taken.
-- Repeat: harmless.
-- Recovering: whole; it grants nothing anew.
local never = 922337203685477
local counter, taken, n, id = KEYS[1], KEYS[2], tonumber(ARGV[1]), ARGV[2]
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local free = redis.call('get', counter)
if free and not string.find(free, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE the key holds no number')
end
local total = tonumber(free or 0)
local back = redis.call('zremrangebyscore', taken, '-inf', now)
if back > 0 and free then
  total = redis.call('incrby', counter, back)
  if total > 0 then redis.pcall(ARGV[4], ARGV[3], string.format('%.0f', total)) end
end
local left = -2
if id ~= '' then
  local score = redis.call('zscore', taken, id)
  if not score then
    id = string.gsub(id, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
    score = redis.call('zscore', taken, id)
  end
  if score then
    score = tonumber(score)
    left = score < never and score - now or -1
  end
end
return {n, total, redis.call('zcard', taken), left}
