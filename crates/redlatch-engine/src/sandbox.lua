-- Builds the world that scripts see, once for each Lua state.
--
-- Handed in: `raw_call` (runs a command; returns the reply, and true when it is an error table), `helpers` (the
-- functions of `redis` that are written in Rust), `struct`, and `names` (true for the name of each command).
-- Handed back: the environment of every script, and the functions that run one.
local raw_call, helpers, struct, names = ...

local error, pcall, rawset, select, setmetatable, type = error, pcall, rawset, select, setmetatable, type
local format, unpack = string.format, unpack

local function read_only()
  error('Attempt to modify a readonly table', 2)
end

-- Scripts share one Lua state, so nothing that one script can reach may be changed by it for the next. Each table
-- is seen through an empty one whose writes are refused.
local protected = {}
local function protect(real)
  local view = setmetatable({}, { __index = real, __newindex = read_only, __metatable = false })
  protected[view] = true
  return view
end

-- Commands take text. Numbers become text here, with the digits that Redis gives them; anything else becomes
-- `false`, which the other side refuses.
local function text(value)
  local kind = type(value)
  if kind == 'string' then return value end
  return kind == 'number' and format('%.17g', value)
end

local function run_command(...)
  local count = select('#', ...)
  if count <= 5 then
    local a, b, c, d, e = ...
    -- A look into a table is cheaper than asking for the type, and the first word is nearly always such a name.
    if not names[a] and type(a) ~= 'string' then a = text(a) end
    if count > 1 and type(b) ~= 'string' then b = text(b) end
    if count > 2 and type(c) ~= 'string' then c = text(c) end
    if count > 3 and type(d) ~= 'string' then d = text(d) end
    if count > 4 and type(e) ~= 'string' then e = text(e) end
    return raw_call(count, a, b, c, d, e)
  end
  local words = { ... }
  for i = 1, count do words[i] = text(words[i]) end
  return raw_call(count, unpack(words, 1, count))
end

-- A failed command raises its error table, which keeps the code word of the error until the very end.
function helpers.call(...)
  local reply, failed = run_command(...)
  if failed then error(reply, 0) end
  return reply
end

function helpers.pcall(...)
  local reply = run_command(...)
  return reply
end

-- Inside a script, an error that is caught is text, whatever raised it.
local function caught(ok, first, ...)
  if not ok and type(first) == 'table' and first.err then return false, first.err end
  return ok, first, ...
end

local base = {
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, next = next, pairs = pairs,
  rawequal = rawequal, rawget = rawget, select = select, setmetatable = setmetatable, tonumber = tonumber,
  tostring = tostring, type = type, unpack = unpack, _VERSION = _VERSION,
  pcall = function(...) return caught(pcall(...)) end,
  rawset = function(target, key, value)
    if protected[target] then error('Attempt to modify a readonly table', 2) end
    return rawset(target, key, value)
  end,
  math = protect(math), struct = protect(struct), table = protect(table), redis = protect(helpers),
}

-- Bytecode is not checked by Lua 5.1 and would be a way out of the sandbox.
string.dump = nil
getmetatable('').__metatable = false
base.string = protect(string)

setmetatable(base, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})
local environment = protect(base)
base._G = environment

-- The commonest replies are short lists of numbers and strings. They are handed over as several values, because
-- reading a table from outside costs far more: -1 and one value, or the length and that many values.
local function finish(ok, reply)
  if ok and type(reply) == 'table' and reply.err == nil and reply.ok == nil then
    local size = #reply
    if size > 0 and size <= 8 then return ok, size, unpack(reply, 1, size) end
  end
  return ok, -1, reply
end

local function run(script, keys, argv)
  base.KEYS, base.ARGV = keys, argv
  return finish(pcall(script))
end

local function run_one_key(script, key, ...)
  base.KEYS, base.ARGV = { key }, { ... }
  return finish(pcall(script))
end

local function run_two_keys(script, first, second, ...)
  base.KEYS, base.ARGV = { first, second }, { ... }
  return finish(pcall(script))
end

return environment, run, run_one_key, run_two_keys
