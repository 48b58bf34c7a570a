//! What `patterns.lua` is made of: searches in texts that can be stopped.

use mlua::{Lua, LuaString, MultiValue, Value};

use crate::lua_pattern::{Capture, Matcher, Trouble};

/// Bytes that mean more than themselves in a pattern.
const SPECIAL: &[u8] = b"^$*+?.([%-";

/// `seek`, `plain` and `pace`, as the Lua side wants them. `pace` fails when the script is to end.
pub(crate) fn functions(
    lua: &Lua,
    pace: impl Fn(&Lua) -> mlua::Result<()> + Clone + Send + Sync + 'static,
) -> mlua::Result<MultiValue> {
    let look = pace.clone();
    type Search = (LuaString, LuaString, usize, bool, bool, bool);
    let seek = lua.create_function(move |lua, (text, pattern, from, whole, anchors, there): Search| {
        let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
        // A pattern ends at its first zero byte, as in Lua 5.1.
        let short = pattern.split(|&byte| byte == 0).next().unwrap_or_default();
        if !whole && anchors && !short.iter().any(|byte| SPECIAL.contains(byte)) {
            return find_plain(&text, &pattern, from);
        }
        let (anchored, short) = match short {
            [b'^', rest @ ..] if anchors => (true, rest),
            all => (false, all),
        };
        let mut matcher = Matcher::new(&text, short, || look(lua));
        let found = matcher.find(from, anchored || there).map(|found| {
            let at = found?;
            let captured = if whole || matcher.has_captures() { matcher.captured(at) } else { Vec::new() };
            Some((at, captured))
        });
        match found {
            Ok(None) => Ok(MultiValue::from_iter([Value::Nil])),
            Ok(Some(((start, end), captured))) => {
                let mut reply = vec![number(start + 1), number(end)];
                for capture in captured {
                    reply.push(match capture {
                        Capture::Unfinished => Value::Boolean(false),
                        Capture::Position(at) => number(at + 1),
                        Capture::Text(from, to) => Value::String(lua.create_string(&text[from..to])?),
                    });
                }
                Ok(MultiValue::from_iter(reply))
            }
            Err(Trouble::Stopped(error)) => Err(error),
            Err(Trouble::Pattern(text)) => {
                Ok(MultiValue::from_iter([Value::Boolean(false), Value::String(lua.create_string(text)?)]))
            }
        }
    })?;
    let plain = lua.create_function(|_, (text, pattern, from): (LuaString, LuaString, usize)| {
        find_plain(&text.as_bytes(), &pattern.as_bytes(), from)
    })?;
    let pace = lua.create_function(move |lua, ()| pace(lua))?;
    Ok(MultiValue::from_iter([seek, plain, pace].map(Value::Function)))
}

fn number(number: usize) -> Value {
    Value::Number(number as f64)
}

/// The text as it is, in time that grows with the texts only.
fn find_plain(text: &[u8], pattern: &[u8], from: usize) -> mlua::Result<MultiValue> {
    let found = text.get(from..).and_then(|rest| memchr::memmem::find(rest, pattern));
    Ok(match found {
        Some(at) => MultiValue::from_iter([number(from + at + 1), number(from + at + pattern.len())]),
        None => MultiValue::from_iter([Value::Nil]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that the functions of the library answer, ours answer, too.
    #[test]
    fn patterns_mean_what_they_mean_in_lua() {
        let lua = Lua::new();
        let theirs: mlua::Table = lua
            .load("local all = {} for k, v in pairs(string) do all[k] = v end return all")
            .eval()
            .expect("a copy");
        lua.load(include_str!("patterns.lua"))
            .call::<()>(functions(&lua, |_| Ok(())).expect("functions"))
            .expect("they load");
        let compare: mlua::Function = lua
            .load(
                r#"
                local theirs = ...
                local seed = 7
                local function below(n)
                  seed = (seed * 16807) % 2147483647
                  return seed % n
                end
                local bits = { 'a', 'b', '.', '%a', '%d', '%s', '%w', '[ab]', '[^a]', '[%d_-]', '[a-c]', '(', ')', '()',
                  '%1', '%b()', '%f[%w]', '^', '$', '*', '+', '-', '?', '%', '[', ']', '%%', '\0', 'x', '%W', '%z' }
                local letters = { 'a', 'b', 'c', 'x', '1', '2', '(', ')', ' ', '_', '-', '%', '\0', '\255' }
                local function random(from, most)
                  local out = {}
                  for i = 1, below(most + 1) do out[i] = from[below(#from) + 1] end
                  return table.concat(out)
                end
                local function told(ok, ...)
                  local out = { tostring(ok) }
                  -- Errors have other words and places.
                  if ok then
                    for i = 1, select('#', ...) do out[#out + 1] = type((select(i, ...))) .. tostring((select(i, ...))) end
                  end
                  return table.concat(out, '|')
                end
                local function all(gmatch, text, pattern)
                  local out, n = {}, 0
                  for a, b in gmatch(text, pattern) do
                    n = n + 1
                    out[n] = tostring(a) .. ',' .. tostring(b)
                  end
                  return table.concat(out, ';')
                end
                local good = 0
                local function same(name, mine, other, ...)
                  local a, b = told(pcall(mine, ...)), told(pcall(other, ...))
                  if a ~= b then
                    local args = {}
                    for i = 1, select('#', ...) do args[i] = string.format('%q', tostring((select(i, ...)))) end
                    error(name .. '(' .. table.concat(args, ', ') .. ') is ' .. a .. ', in Lua ' .. b)
                  end
                  if a:sub(1, 4) == 'true' then good = good + 1 end
                end
                for round = 1, 30000 do
                  local text, pattern, init = random(letters, 12), random(bits, 6), below(16) - 5
                  same('find', string.find, theirs.find, text, pattern, init)
                  same('find plain', string.find, theirs.find, text, random(letters, 2), init, true)
                  same('match', string.match, theirs.match, text, pattern, init)
                  same('gmatch', function(...) return all(string.gmatch, ...) end,
                    function(...) return all(theirs.gmatch, ...) end, text, pattern)
                  local new = ({ '<%0>', '%1', '', 'x%%', '<%1%2>', 7 })[below(6) + 1]
                  same('gsub', string.gsub, theirs.gsub, text, pattern, new)
                  same('gsub few', string.gsub, theirs.gsub, text, pattern, new, below(4))
                  same('gsub table', string.gsub, theirs.gsub, text, pattern, { a = 'A', b = 5, x = false })
                  same('gsub function', string.gsub, theirs.gsub, text, pattern,
                    function(a, b) if a ~= 'a' then return tostring(a) .. tostring(b) end end)
                end
                return good
                "#,
            )
            .into_function()
            .expect("it compiles");
        let good: i64 = compare.call(theirs).expect("they agree");
        assert!(good > 100_000, "only {good} calls had an answer");
    }
}
