//! `struct.pack` and `struct.unpack`: numbers and strings in bytes, for scripts that keep records in set members.
//!
//! Formats: `<` `>` byte order, `!` alignment, `x` a zero byte, `b` `B` 1 byte, `h` `H` 2, `l` `L` `T` 8, `i` `I` 4
//! or as many as follow, `f` `d` floating point, `s` up to a zero byte, `c<n>` n bytes (`c0`: all of them; when
//! reading, as many as the number before says).

use mlua::{Lua, MultiValue, Table, Value};

/// Where reading a format string has got to, and what it has set.
struct Format<'a> {
    text: &'a [u8],
    big_endian: bool,
    align: usize,
}

struct Item {
    kind: u8,
    size: usize,
}

fn error(text: &str) -> mlua::Error {
    mlua::Error::runtime(text)
}

impl<'a> Format<'a> {
    fn new(text: &'a [u8]) -> Format<'a> {
        Format { text, big_endian: cfg!(target_endian = "big"), align: 1 }
    }

    fn number(&mut self, default: usize) -> mlua::Result<usize> {
        let digits = self.text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let (number, rest) = self.text.split_at(digits);
        self.text = rest;
        let number = std::str::from_utf8(number).ok().and_then(|text| text.parse::<usize>().ok());
        number.filter(|&number| number <= 1 << 29).ok_or_else(|| error("integral size overflow"))
    }

    /// The next element that stands for data.
    fn next(&mut self) -> mlua::Result<Option<Item>> {
        while let [kind, rest @ ..] = self.text {
            let kind = *kind;
            self.text = rest;
            let size = match kind {
                b' ' => continue,
                b'<' | b'>' => {
                    self.big_endian = kind == b'>';
                    continue;
                }
                b'!' => {
                    self.align = self.number(8)?;
                    if !self.align.is_power_of_two() {
                        return Err(error("alignment is not a power of 2"));
                    }
                    continue;
                }
                b'b' | b'B' | b'x' => 1,
                b'h' | b'H' => 2,
                b'l' | b'L' | b'T' | b'd' => 8,
                b'f' => 4,
                b'i' | b'I' => {
                    let size = self.number(4)?;
                    if !(1..=8).contains(&size) {
                        return Err(error("integral size is out of limits"));
                    }
                    size
                }
                b's' => 0,
                b'c' => self.number(1)?,
                other => return Err(error(&format!("invalid format option '{}'", char::from(other)))),
            };
            return Ok(Some(Item { kind, size }));
        }
        Ok(None)
    }

    fn padding(&self, at: usize, item: &Item) -> usize {
        if matches!(item.kind, b'c' | b's') {
            return 0;
        }
        let size = item.size.min(self.align);
        if size > 1 && size.is_power_of_two() { at.wrapping_neg() & (size - 1) } else { 0 }
    }
}

pub(crate) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set("pack", lua.create_function(pack)?)?;
    table.set("unpack", lua.create_function(unpack)?)?;
    Ok(table)
}

fn pack(lua: &Lua, (format, values): (mlua::LuaString, MultiValue)) -> mlua::Result<mlua::LuaString> {
    let format = format.as_bytes();
    let mut format = Format::new(&format);
    let mut values = values.iter();
    let mut out: Vec<u8> = Vec::new();
    let mut next = || values.next().ok_or_else(|| error("bad argument: a value is missing"));
    while let Some(item) = format.next()? {
        out.resize(out.len() + format.padding(out.len(), &item), 0);
        match item.kind {
            b'x' => out.push(0),
            b's' | b'c' => {
                let value = next()?;
                let text = lua.coerce_string(value.clone())?.ok_or_else(|| error("string expected"))?;
                let text = text.as_bytes();
                let size = if item.kind == b's' || item.size == 0 { text.len() } else { item.size };
                out.extend_from_slice(text.get(..size).ok_or_else(|| error("string too short"))?);
                if item.kind == b's' {
                    out.push(0);
                }
            }
            _ => {
                let value = next()?;
                let number = lua.coerce_number(value.clone())?.ok_or_else(|| error("number expected"))?;
                put_number(&mut out, &format, &item, number);
            }
        }
    }
    lua.create_string(out)
}

fn put_number(out: &mut Vec<u8>, format: &Format<'_>, item: &Item, number: f64) {
    let bytes = match item.kind {
        b'f' => u64::from((number as f32).to_bits()),
        b'd' => number.to_bits(),
        // Two's complement for negative numbers, the whole unsigned range for the others.
        _ if number < 0.0 => (number as i64).cast_unsigned(),
        _ => number as u64,
    }
    .to_le_bytes();
    let bytes = &bytes[..item.size];
    if format.big_endian { out.extend(bytes.iter().rev()) } else { out.extend_from_slice(bytes) }
}

fn get_number(bytes: &[u8], format: &Format<'_>, item: &Item) -> f64 {
    let mut raw = [0_u8; 8];
    raw[..item.size].copy_from_slice(bytes);
    if format.big_endian {
        raw[..item.size].reverse();
    }
    let raw = u64::from_le_bytes(raw);
    match item.kind {
        b'f' => f64::from(f32::from_bits(raw as u32)),
        b'd' => f64::from_bits(raw),
        kind if kind.is_ascii_lowercase() => {
            let shift = 64 - 8 * item.size;
            ((raw << shift).cast_signed() >> shift) as f64
        }
        _ => raw as f64,
    }
}

fn unpack(
    lua: &Lua,
    (format, data, from): (mlua::LuaString, mlua::LuaString, Option<usize>),
) -> mlua::Result<MultiValue> {
    let (format, data) = (format.as_bytes(), data.as_bytes());
    let mut format = Format::new(&format);
    let mut at = from.unwrap_or(1).checked_sub(1).ok_or_else(|| error("offset must be 1 or greater"))?;
    let too_short = || error("data string too short");
    let mut out = Vec::new();
    while let Some(item) = format.next()? {
        at += format.padding(at, &item);
        let mut size = item.size;
        if item.kind == b'c' && size == 0 {
            let Some(Value::Number(wanted)) = out.pop() else {
                return Err(error("format 'c0' needs a previous size"));
            };
            size = wanted as usize;
        }
        let rest = data.get(at..).ok_or_else(too_short)?;
        if item.kind == b's' {
            size =
                rest.iter().position(|&byte| byte == 0).ok_or_else(|| error("unfinished string in data"))?;
        }
        let bytes = rest.get(..size).ok_or_else(too_short)?;
        match item.kind {
            b'x' => {}
            b'c' => out.push(Value::String(lua.create_string(bytes)?)),
            b's' => {
                out.push(Value::String(lua.create_string(bytes)?));
                at += 1;
            }
            _ => out.push(Value::Number(get_number(bytes, &format, &item))),
        }
        at += size;
    }
    out.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from_vec(out))
}
