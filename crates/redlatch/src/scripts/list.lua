-- Read one page of the names that look like locks and their kin, for a listing.
--
-- ARGV[1] cursor   ARGV[2] glob pattern of keys   ARGV[3] keys to look at   ARGV[4] most fields of a hash to look at
-- ARGV[5] type of the keys: hash (locks, rate limiters), list (queues of fair locks), zset (permits in use),
--         string (counters)
--
-- Check and change: nothing; only reads. The cursor makes the listing resumable, so that no call is long.
-- Reply:  {next cursor, name, …}. Keys that only help a lock are not named; the queue of a fair lock and the permits
--         of a semaphore stand for its name. SCAN names the keys of everybody; those that the account may not read
--         are left out.
local most, kind = tonumber(ARGV[4]), ARGV[5]
local refused, elsewhere = {}, {}
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply['err'] then
    error(string.find(reply['err'], 'non local key', 1, true) and elsewhere or refused)
  end
  return reply
end

-- Helper keys put braces around a name that has none.
local function bare(text) return string.match(text, '^{([^{]*)}$') or text end

local function is_owner(field)
  return string.sub(field, 37, 37) == ':' and string.find(field, '^%-?%d', 38) ~= nil
end

local name_of = {}

function name_of.hash(key)
  local known = read('hmget', key, 'mode', 'rate', 'interval', 'type')
  if known[1] or (known[2] and known[3] and known[4]) then return key end
  if read('hlen', key) > most then return nil end
  for _, field in ipairs(read('hkeys', key)) do
    if is_owner(field) then return key end
  end
end

function name_of.list(key)
  local rest = string.match(key, '^redisson_lock_queue:(.+)$')
  local name = rest and bare(rest)
  if name and read('type', name) then return name end
end

function name_of.zset(key)
  local rest = string.match(key, '^(.+):timeout$')
  local name = rest and bare(rest)
  if name and read('type', name)['ok'] == 'string' then return name end
end

function name_of.string(key)
  if read('strlen', key) > 20 then return nil end
  if not string.find(read('get', key) or '', '^%-?%d+$') then return nil end
  if string.find(key, '^redisson_lock_token:') or string.find(key, '^redisson_unlock_latch:') then return nil end
  if string.find(key, ':rwlock_timeout:%d+$') then return nil end
  local limiter = string.match(key, '^(.+):value$') or string.match(key, '^(.+):value:[%x%-]+$')
  if limiter and read('type', bare(limiter))['ok'] == 'hash' then return nil end
  return key
end

local page = redis.call('scan', ARGV[1], 'match', ARGV[2], 'count', ARGV[3], 'type', kind)
local reply = {page[1]}
for _, key in ipairs(page[2]) do
  local readable, name = pcall(name_of[kind], key)
  if readable then
    reply[#reply + 1] = name
  elseif name == elsewhere then
    -- Its slot is on the way to this node of a cluster or from it, so it is looked at by its own name.
    reply[#reply + 1] = key
  elseif name ~= refused then
    error(name)
  end
end
return reply
