-- Read everything that there is to know of one name: a lock of any kind, a counter, permits, a rate limiter.
--
-- KEYS[1] key   KEYS[2] token counter, if it is wanted   ARGV[1] most entries of each list to return
-- KEYS[3] queue   KEYS[4] times   KEYS[5] permits in use   (declared for servers that want that, and used in any case)
--
-- Check and change: nothing; only reads. The keys beside the first are named here, in its slot, and read with pcall: an
--         account without a right to them still sees the key itself.
-- Reply:  {type, ttl ms, token or '', field count, {field, value, …}, number or '',
--         {waiters, owner, ms until stale or '', …}, {reader, {ms left or -2, …}, …},
--         {permits in use, permits that ran out, id, ms left or -1, …}, 1 = something beside it could not be read}.
--         Lists that do not apply, and the fields of a hash that has too many, are empty; `mode` is always there.
-- Repeat: harmless.
local key, most = KEYS[1], tonumber(ARGV[1])
local tag = string.find(key, '{', 1, true) and key or '{' .. key .. '}'
local unread = 0
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply['err'] then
    unread = 1
    return nil
  end
  return reply
end

local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function left(score) return math.floor(math.max(0, math.min(tonumber(score) - now, 9e15))) end

local kind = redis.call('type', key)['ok']
local token = KEYS[2] and redis.pcall('get', KEYS[2])
if type(token) ~= 'string' then token = '' end
local fields, size, number, waiting, readers, permits = {}, 0, '', {}, {}, {}

if kind == 'hash' then
  size = redis.call('hlen', key)
  local mode = redis.call('hget', key, 'mode')
  if size <= most then
    fields = redis.call('hgetall', key)
  elseif mode then
    fields = {'mode', mode}
  end
  -- Each read hold has a key of its own, which ends when the hold does.
  local room = most
  for at = 1, mode and #fields or 0, 2 do
    local field, holds = fields[at], tonumber(fields[at + 1])
    if field ~= 'mode' and holds and string.sub(field, -6) ~= ':write' then
      local lasting = {}
      for n = 1, math.min(holds, room) do
        lasting[n] = read('pttl', tag .. ':' .. field .. ':rwlock_timeout:' .. n) or -2
      end
      room = room - #lasting
      readers[#readers + 1] = field
      readers[#readers + 1] = lasting
    end
  end
end

-- A fair lock that is free may still be waited for.
if kind == 'hash' or kind == 'none' then
  local queue = 'redisson_lock_queue:' .. tag
  waiting[1] = read('llen', queue) or 0
  local owners = waiting[1] > 0 and most > 0 and read('lrange', queue, 0, most - 1) or {}
  for _, owner in ipairs(owners) do
    local score = read('zscore', 'redisson_lock_timeout:' .. tag, owner)
    waiting[#waiting + 1] = owner
    waiting[#waiting + 1] = score and left(score) or ''
  end
end

if kind == 'string' and redis.call('strlen', key) <= 20 then
  local text = redis.call('get', key)
  if string.find(text, '^%-?%d+$') then number = text end
end
if number ~= '' then
  local ends, from = tag .. ':timeout', string.format('%.0f', now)
  local over = read('zcount', ends, '-inf', from) or 0
  local used = read('zcount', ends, '(' .. from, '+inf') or 0
  if over + used > 0 then
    permits = {used, over}
    local found = read('zrangebyscore', ends, '(' .. from, '+inf', 'withscores', 'limit', 0, ARGV[1]) or {}
    for at = 1, #found, 2 do
      local never = tonumber(found[at + 1]) >= 922337203685477
      permits[#permits + 1] = found[at]
      permits[#permits + 1] = never and -1 or left(found[at + 1])
    end
  end
end
return {kind, redis.call('pttl', key), token, size, fields, number, waiting, readers, permits, unread}
