-- Give leased permits back: those that are still taken, or all of them or none.
--
-- KEYS[1] free permits     ARGV[1] request number   ARGV[2] ids, 16 bytes each   ARGV[3] channel
-- KEYS[2] permits taken    ARGV[4] publish command        ARGV[5] 1 = all or none
-- ARGV[6] what to reply when given back                   ARGV[7] what to reply when not
--
-- Check:  which ids are taken and not over; older releases of Redisson write an id as 32 hexadecimal digits.
-- Change: those members and all whose time is up go, and are counted as free in one step. Deleting comes first because it
--         is allowed when memory is full, and lets the counting pass then. Permits of a counter that is gone are not counted,
--         or it would come back with too few. One message says the total, if anybody can take from it.
-- Reply:  {number, ARGV[6], receivers}, receivers -1: the message was refused; {number, ARGV[7], place of the first id that
--         is not taken}, and then nothing but what was over has changed, if all or none were asked for.
-- Repeat: answers otherwise; the caller knows what its own request may have done.
-- Recovering: whole; it grants nothing anew.
local counter, taken, n, ids = KEYS[1], KEYS[2], tonumber(ARGV[1]), ARGV[2]
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local free = redis.call('get', counter)
if free and not string.find(free, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE the key holds no number')
end
local back = redis.call('zremrangebyscore', taken, '-inf', now)
local missing, found = 0, {}
for at = 1, #ids, 16 do
  local id = string.sub(ids, at, at + 15)
  if not redis.call('zscore', taken, id) then
    id = string.gsub(id, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
    if not redis.call('zscore', taken, id) then
      if missing == 0 then missing = (at + 15) / 16 end
      id = nil
    end
  end
  if id then found[#found + 1] = id end
end
local given = #found > 0 and (missing == 0 or ARGV[5] ~= '1')
if given then
  for _, id in ipairs(found) do back = back + redis.call('zrem', taken, id) end
end
local heard = 0
if back > 0 and free then
  local total = redis.call('incrby', counter, back)
  if total > 0 then
    heard = redis.pcall(ARGV[4], ARGV[3], string.format('%.0f', total))
    if type(heard) == 'table' then heard = -1 end
  end
end
if given then return {n, tonumber(ARGV[6]), heard} end
return {n, tonumber(ARGV[7]), missing}
