-- Set the leases of taken permits anew, for many holds in one call, or look whether they are still taken.
--
-- KEYS permits taken, one for each hold
-- ARGV[1] request number   ARGV[2] lease in ms, 0 to look only, negative to set it even if that is shorter than what is left
-- ARGV[3…] the ids of each hold, 16 bytes each
--
-- Check:  every id of a hold is taken and not over; older releases of Redisson write an id as 32 hexadecimal digits.
-- Change: the time at which each ends, by the server's clock. A renewal never brings it closer, because the holder may count on
--         an extension that was longer. Removing a member that is not there comes first: a read-only
--         replica refuses it, instead of saying "no longer held", and it lets the rest pass when memory is full. What is to end
--         when it does already is written all the same: replicas can be waited for after a write alone, and a repeat may be what asks them.
-- Reply:  {batch, 1 or 0 for each hold}.
-- Repeat: harmless.
-- Recovering: whole; it grants nothing anew.
local never = 922337203685477
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease = tonumber(ARGV[2])
local ends = math.min(now + 1 + math.abs(lease), never)
local reply = {tonumber(ARGV[1])}
for i, taken in ipairs(KEYS) do
  redis.call('zrem', taken, '')
  local ids, members, held = ARGV[i + 2], {}, 1
  for at = 1, #ids, 16 do
    local id = string.sub(ids, at, at + 15)
    local score = redis.call('zscore', taken, id)
    if not score then
      id = string.gsub(id, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
      score = redis.call('zscore', taken, id)
    end
    if not score or tonumber(score) <= now then
      held = 0
      break
    end
    if lease < 0 or (lease > 0 and tonumber(score) <= ends) then members[#members + 1] = id end
  end
  if held == 1 then
    local changed = 0
    for _, id in ipairs(members) do changed = changed + redis.call('zadd', taken, 'ch', string.format('%.0f', ends), id) end
    if #members > 0 and changed == 0 then
      redis.call('zadd', taken, string.format('%.0f', ends), '')
      redis.call('zrem', taken, '')
    end
  end
  reply[i + 1] = held
end
return reply
