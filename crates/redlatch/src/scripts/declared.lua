-- The beginning of scripts that touch timeout keys of read holds: stands before their text where every key has to be declared.
--
-- KEYS what the script takes, then timeout keys   ARGV what the script takes, then
--   how many keys the script takes   whose timeout keys it touches: those of the owner in this argument; 3 = of each owner from there
--   on, with two keys for each; all = of all fields of the hash; some = the same, but only declared ones
--
-- Check:  every timeout key that the script may touch is declared. It looks at the fields of the hash, the next hold, and the first
--         hold of an owner without any, which is more than most scripts touch.
-- Change: none. The text that follows sees the keys and arguments that it takes and no others. With `some`, a reader whose key is not
--         declared counts as one that needs the whole TTL of the hash, so that the TTL stays as it is; and its key is left to its own end.
-- Reply:  {first argument, {keys to declare}} if one was not declared; otherwise what the script replies.
local given, KEYS, redis = KEYS, {}, redis
do
  local whose, takes = table.remove(ARGV), tonumber(table.remove(ARGV))
  local declared, wanted, complete = {}, {}, true
  for i, key in ipairs(given) do
    declared[key] = true
    if i <= takes then KEYS[i] = key end
  end
  local function want(base, field, count)
    count = tonumber(count) or 0
    local function one(i)
      local key = base .. field .. ':rwlock_timeout:' .. i
      complete = complete and declared[key]
      -- Nobody declares more than this.
      if #wanted <= 10000 or whose ~= 'all' then wanted[#wanted + 1] = key end
    end
    for i = 1, math.max(math.min(count, 1000) + 1, 1) do one(i) end
    if count > 1001 then one(count) end
  end
  if whose == 'all' then
    want(KEYS[2], ARGV[2])
    local fields = redis.call('hgetall', KEYS[1])
    for at = 1, #fields, 2 do want(KEYS[2], fields[at], fields[at + 1]) end
  else
    local first, holds = tonumber(whose) or 2, 1
    if whose == '3' then holds = takes / 2 end
    for at = 1, holds do
      local owner = ARGV[first + at - 1]
      want(KEYS[2 * at], owner, redis.call('hget', KEYS[2 * at - 1], owner) or '0')
    end
  end
  if not complete then return {ARGV[1], wanted} end
  if whose == 'some' then
    local known, base, hash = redis, KEYS[2], KEYS[1]
    redis = setmetatable({
      call = function(command, key, ...)
        if declared[key] or (command ~= 'pttl' and command ~= 'del') then return known.call(command, key, ...) end
        local field = string.match(string.sub(key, #base + 1), '^(.*):rwlock_timeout:%d+$')
        if command == 'del' then return 0 end
        if field == 'mode' or string.sub(field, -6) == ':write' then return -2 end
        local left = known.call('pttl', hash)
        if left < 0 then return 9007199254740991 end
        return left
      end,
    }, {__index = known})
  end
end
