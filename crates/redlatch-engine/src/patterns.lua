-- Puts functions into `string` and `table` that can be stopped in place of those that cannot.
--
-- Handed in: `seek` (the first match from a position on: where it begins and ends, and what it captures; `nil` when there is
-- none; `false` and a text when the pattern is none; `false` for a capture that has no end), `plain` (the same for a text as it is), and `pace` (fails when the script's
-- time is over).
local seek, plain, pace = ...

local byte, gsub, sub = string.byte, string.gsub, string.sub
local concat, error, floor, rep, select, sort, tonumber, tostring, type =
  table.concat, error, math.floor, string.rep, select, table.sort, tonumber, tostring, type

-- Numbers are text where text is wanted, as everywhere in Lua.
local function text(value, at, name)
  local kind = type(value)
  if kind == 'string' then return value end
  if kind == 'number' then return tostring(value) end
  error("bad argument #" .. at .. " to '" .. name .. "' (string expected, got " .. kind .. ')', 3)
end

-- Where to begin, counted from 0.
local function origin(init, size)
  init = floor(tonumber(init) or 1)
  if init < 0 then init = init + size + 1 end
  return init < 1 and 0 or init - 1 > size and size or init - 1
end

local function checked(first, ...)
  if first == false then error(..., 3) end
  return first, ...
end

local function finished(...)
  for i = 1, select('#', ...) do
    if select(i, ...) == false then error('unfinished capture', 4) end
  end
  return ...
end

function string.find(subject, pattern, init, as_it_is)
  subject, pattern = text(subject, 1, 'find'), text(pattern, 2, 'find')
  local from = origin(init, #subject)
  if as_it_is then return plain(subject, pattern, from) end
  return finished(checked(seek(subject, pattern, from, false, true, false)))
end

local function captures(first, _, ...)
  if first then return finished(...) end
  return nil
end

function string.match(subject, pattern, init)
  subject, pattern = text(subject, 1, 'match'), text(pattern, 2, 'match')
  return captures(checked(seek(subject, pattern, origin(init, #subject), true, true, false)))
end

function string.gmatch(subject, pattern)
  subject, pattern = text(subject, 1, 'gmatch'), text(pattern, 2, 'gmatch')
  local from = 0
  local function step(first, last, ...)
    if not first then
      from = #subject + 1
      return nil
    end
    from = last < first and first or last
    return finished(...)
  end
  return function()
    if from > #subject then return nil end
    return step(checked(seek(subject, pattern, from, true, false, false)))
  end
end
string.gfind = nil

-- What a match becomes. A false answer leaves it as it is.
local function value_of(replacement, kind, whole, ...)
  local value
  if kind == 'function' then
    value = replacement(finished(...))
  elseif kind == 'table' then
    value = replacement[finished((...))]
  else
    local captured, count = { ... }, select('#', ...)
    -- This pattern is short and looks at each byte once.
    return (gsub(replacement, '%%(.?)', function(digit)
      if digit == '' then return '\0' end
      local number = tonumber(digit)
      if not number then return digit end
      if number == 0 then return whole end
      if number > count then error('invalid capture index', 4) end
      return finished(captured[number])
    end))
  end
  if not value then return whole end
  if type(value) ~= 'string' and type(value) ~= 'number' then
    error('invalid replacement value (a ' .. type(value) .. ')', 3)
  end
  return value
end

function string.gsub(subject, pattern, replacement, most)
  subject, pattern = text(subject, 1, 'gsub'), text(pattern, 2, 'gsub')
  local kind = type(replacement)
  if kind == 'number' then
    replacement, kind = tostring(replacement), 'string'
  elseif kind ~= 'string' and kind ~= 'function' and kind ~= 'table' then
    error("bad argument #3 to 'gsub' (string/function/table expected)", 2)
  end
  most = tonumber(most) or #subject + 1
  local anchored = byte(pattern) == 94
  local out, size, from, count = {}, 0, 0, 0
  local function put(piece)
    size = size + 1
    out[size] = piece
  end
  local function take(first, last, ...)
    if not first then return false end
    if first > from + 1 then put(sub(subject, from + 1, first - 1)) end
    count = count + 1
    put(value_of(replacement, kind, sub(subject, first, last), ...))
    from = last
    if last < first then
      -- An empty match lets the next byte through.
      if first > #subject then return false end
      put(sub(subject, first, first))
      from = first
    end
    return not anchored
  end
  while count < most and take(checked(seek(subject, pattern, from, true, true, anchored))) do end
  if from < #subject then put(sub(subject, from + 1)) end
  return concat(out, '', 1, size), count
end

function string.rep(...)
  pace()
  return rep(...)
end

function table.concat(...)
  pace()
  return concat(...)
end

function table.sort(...)
  pace()
  return sort(...)
end
