-- Release a fair lock whose owner field belongs to one process alone, and tell the next in the queue or grant to it.
--
-- KEYS[1] lock hash   KEYS[2] queue   KEYS[3] times   KEYS[4] token counter, if the heir draws a token
-- ARGV[1] request number   ARGV[2] owner field   ARGV[3] channel, to which `:owner` is appended   ARGV[4] publish command
-- ARGV[5] heir: the owner of this process that has waited longest, or ''   ARGV[6] its lease in ms   ARGV[7] 1 = it draws a token
-- ARGV[8] only if the owner counts so many, as in release.lua
--
-- Check:  queue and times can be read, which comes first because it may fail. With a count: another one means that another process
--         has come to hold under the owner, and the hash of a read-write lock has no hold of this kind.
-- Change: heads of the queue whose time is over are dropped. HDEL removes the owner field, and with the only field the hash goes
--         too. If the head is the heir, it gets the lock here and now, as it would by asking; if it is anybody else,
--         it is told. Whatever is refused to the heir, or fails for it, leaves the lock free and the heir told.
-- Reply:  {number, 1, receivers}; {number, 2, token or 0} when the heir has it; {number, 0, 0} when the owner held nothing;
--         {number, -1, count} when it counts another number.
-- Repeat: answers otherwise; the caller knows what its own request may have done.
-- Recovering: in parts; what grants to the heir is refused, and the heir is told.
local key, queue, times = KEYS[1], KEYS[2], KEYS[3]
local n = tonumber(ARGV[1])
if ARGV[8] then
  local held = redis.call('hmget', key, ARGV[2], 'mode')
  local count = held[1]
  if held[2] then
    redis.call('hdel', key, '')
    return {n, 0, 0}
  end
  if count and count ~= ARGV[8] then
    redis.call('hdel', key, '')
    return {n, -1, tonumber(count)}
  end
end
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local head, over = false, false
for dropped = 0, 1000 do
  head = redis.call('lindex', queue, 0)
  local time = head and redis.call('zscore', times, head)
  over = time and tonumber(time) <= now
  if not over or dropped == 1000 then break end
  redis.call('zrem', times, head)
  redis.call('lpop', queue)
end
-- A head that is still over stays, and is neither told nor granted to: 1,000 are enough for one call. The heir is told
-- instead, or a waiter that lined up lately, for each that asks drops as many.
if over then
  head = ARGV[5] ~= '' and ARGV[5]
  for _, last in ipairs(head and {} or redis.call('lrange', queue, -10, -1)) do
    local time = redis.call('zscore', times, last)
    if time and tonumber(time) > now then head = last end
  end
end
if redis.call('hdel', key, ARGV[2]) == 0 then return {n, 0, 0} end
if not head then return {n, 1, 0} end
if head == ARGV[5] and not over and redis.call('exists', key) == 0 then
  local token, refused = 0, false
  if ARGV[7] == '1' then
    token = clock[1] * 1000000 + clock[2]
    local last = redis.pcall('get', KEYS[4])
    last = type(last) ~= 'table' and tonumber(last or '0')
    refused = not last
    if not refused then
      if last >= token then token = last + 1 end
      refused = redis.pcall('set', KEYS[4], string.format('%.0f', token))['err'] ~= nil
    end
  end
  refused = refused or type(redis.pcall('hset', key, head, '1')) == 'table'
  if not refused then
    if type(redis.pcall('pexpire', key, ARGV[6])) ~= 'table' then
      redis.call('lpop', queue)
      redis.call('zrem', times, head)
      return {n, 2, token}
    end
    redis.call('hdel', key, head)
  end
end
local heard = redis.pcall(ARGV[4], ARGV[3] .. ':' .. head, '0')
if type(heard) == 'table' then heard = -1 end
return {n, 1, heard}
