-- What readers need of the TTL of their hash: stands before the text of scripts that end or shorten a read hold.
--
-- Check and change: nothing. `needed_by_readers` is called with the hash, the beginning of its timeout keys and the time that is `enough`; it
-- replies how long the longest read hold lasts, and looks at the readers only until one is found that lasts long enough. 0: nobody reads.
local function needed_by_readers(key, base, enough)
  local needed = 0
  local function look(fields)
    for at = 1, #fields, 2 do
      for i = 1, math.min(tonumber(fields[at + 1]) or 0, 1000) do
        needed = math.max(needed, redis.call('pttl', base .. fields[at] .. ':rwlock_timeout:' .. i))
        if needed > 0 and needed >= enough then return true end
      end
    end
    return #fields < 6
  end
  -- Among many readers of alike leases the first few will do; only otherwise all are read.
  if not look(redis.call('hrandfield', key, 3, 'withvalues')) then look(redis.call('hgetall', key)) end
  return needed
end
