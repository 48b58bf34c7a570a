-- The beginning of scripts that go to the node that a slot moves to, while not all of their keys need be there: stands before their
-- text, and only their first key is declared. A node that is getting a slot runs nothing that declares several keys if one of them is
-- absent, and keys that a lock has only at times are absent everywhere. One key after the other it serves.
--
-- KEYS[1] the first key that the script takes   ARGV what the script takes, then
--   all its keys, the first one, too   how many these are
--
-- Check and change: nothing. The text that follows sees its keys and its arguments as if they had been declared.
-- Reply:  what the script replies.
local KEYS, ARGV = (function(args)
  local keys, own = {}, {}
  local count = tonumber(args[#args])
  local from = #args - count
  for i = 1, from - 1 do own[i] = args[i] end
  for i = 1, count do keys[i] = args[from + i - 1] end
  return keys, own
end)(ARGV)
