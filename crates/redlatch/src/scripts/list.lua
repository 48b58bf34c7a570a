-- Read one page of the names that look like locks and their kin, for a listing.
--
-- ARGV[1] cursor   ARGV[2] glob pattern of keys   ARGV[3] keys to look at   ARGV[4] most fields of a hash to look at
-- ARGV[5] type of the keys: hash (locks, rate limiters), list (queues of fair locks), zset (permits in use),
--         string (counters)
--
-- Check and change: nothing; only reads. The cursor makes the listing resumable, so that no call is long.
-- Reply:  {next cursor, name, …}. Keys that only help a lock are not named; the queue of a fair lock and the permits
--         of a semaphore stand for its name. SCAN names the keys of everybody; those that the account may not read
--         are left out. A key that may be one and cannot be read here is named, and the caller looks at it: one whose slot is
--         on its way, and every one where a script may read no key that it has not declared.
-- Repeat: harmless.
local most, kind = tonumber(ARGV[4]), ARGV[5]
local refused, unseen = {}, {}
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply['err'] then
    local undeclared = string.find(reply['err'], 'undeclared key', 1, true)
    -- The slot of the key is on the way to this node of a cluster or from it.
    local elsewhere = string.find(reply['err'], 'non local key', 1, true)
    error((undeclared or elsewhere) and unseen or refused)
  end
  return reply
end

-- Helper keys put braces around a name that has none.
local function bare(text) return string.match(text, '^{([^{]*)}$') or text end

local function is_owner(field)
  return string.sub(field, 37, 37) == ':' and string.find(field, '^%-?%d', 38) ~= nil
end

-- The name that a key may stand for, by the look of it, and whether it does.
local name_of, is_one = {}, {}

function name_of.hash(key)
  if not string.find(key, '^redlatch_forced:') then return key end
end

function is_one.hash(key)
  local known = read('hmget', key, 'mode', 'rate', 'interval', 'type')
  if known[1] or (known[2] and known[3] and known[4]) then return true end
  if read('hlen', key) > most then return false end
  for _, field in ipairs(read('hkeys', key)) do
    if is_owner(field) then return true end
  end
end

function name_of.list(key)
  local rest = string.match(key, '^redisson_lock_queue:(.+)$')
  return rest and bare(rest)
end

function is_one.list(_, name) return read('type', name) end

function name_of.zset(key)
  local rest = string.match(key, '^(.+):timeout$')
  return rest and bare(rest)
end

function is_one.zset(_, name) return read('type', name)['ok'] == 'string' end

function name_of.string(key)
  if string.find(key, '^redisson_lock_token:') or string.find(key, '^redisson_unlock_latch:') then return nil end
  if string.find(key, ':rwlock_timeout:%d+$') then return nil end
  return key
end

function is_one.string(key)
  if read('strlen', key) > 20 then return false end
  if not string.find(read('get', key) or '', '^%-?%d+$') then return false end
  local limiter = string.match(key, '^(.+):value$') or string.match(key, '^(.+):value:[%x%-]+$')
  return not (limiter and read('type', bare(limiter))['ok'] == 'hash')
end

local page = redis.call('scan', ARGV[1], 'match', ARGV[2], 'count', ARGV[3], 'type', kind)
local reply = {page[1]}
for _, key in ipairs(page[2]) do
  local name = name_of[kind](key)
  if name then
    local known, found = pcall(is_one[kind], key, name)
    if not known and found ~= refused and found ~= unseen then error(found) end
    if (known and found) or found == unseen then reply[#reply + 1] = name end
  end
end
return reply
