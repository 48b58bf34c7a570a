//! YAML as a tree with tags and lines. Errors say where and never what, because what stands there may be a secret.

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use super::Refused;

/// How deep values may be nested. Redisson's own files are four deep.
const DEPTH_MAX: usize = 32;
/// How many values one file may have.
const VALUES_MAX: usize = 20_000;

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Value {
    pub(super) line: usize,
    /// The Java class that a tag names: of `!<class>`, `!class` and `!!class`.
    pub(super) class: Option<String>,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Nothing was written, or `null`.
    Null,
    Scalar(String),
    List(Vec<Value>),
    Map(Vec<Entry>),
}

/// One pair of a map.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Value,
}

/// Reads the first document; an empty one is `Null`.
pub(super) fn read(text: &str) -> Result<Value, Refused> {
    let mut reader = Reader { text, parser: Parser::new_from_str(text), line: 1, values: 0 };
    loop {
        match reader.next()? {
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            Event::StreamEnd | Event::DocumentEnd => {
                return Ok(Value { line: 1, class: None, kind: Kind::Null });
            }
            event => return reader.value(event, 0),
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    line: usize,
    values: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>, Refused> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => {
                self.line = span.start.line();
                Ok(event)
            }
            Some(Err(error)) => {
                let line = error.marker().line();
                let indent = self.text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
                let indented = &indent[..indent.len() - indent.trim_start().len()];
                Err(if indented.contains('\t') {
                    Refused::at(line, "a tab indents this line, which YAML forbids; use blanks")
                } else {
                    Refused::at(line, "this is not YAML")
                })
            }
            None => Err(Refused::at(self.line, "the file ends too early")),
        }
    }

    fn value(&mut self, event: Event<'a>, depth: usize) -> Result<Value, Refused> {
        let line = self.line;
        self.values += 1;
        if depth > DEPTH_MAX || self.values > VALUES_MAX {
            return Err(Refused::at(line, "the file is nested too deeply or has too many values"));
        }
        let (tag, kind) = match event {
            Event::Scalar(text, style, _, tag) => {
                let is_null = style == ScalarStyle::Plain
                    && matches!(&*text, "" | "~" | "null" | "Null" | "NULL")
                    && tag.is_none();
                let kind = if is_null { Kind::Null } else { Kind::Scalar(text.into_owned()) };
                (tag, kind)
            }
            Event::SequenceStart(_, tag) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => break,
                        event => items.push(self.value(event, depth + 1)?),
                    }
                }
                (tag, Kind::List(items))
            }
            Event::MappingStart(_, tag) => {
                let mut entries = Vec::new();
                loop {
                    let event = self.next()?;
                    let line = self.line;
                    let key = match event {
                        Event::MappingEnd => break,
                        Event::Scalar(key, ..) => key.into_owned(),
                        _ => return Err(Refused::at(line, "a key is not a text")),
                    };
                    let event = self.next()?;
                    entries.push(Entry { key, line, value: self.value(event, depth + 1)? });
                }
                (tag, Kind::Map(entries))
            }
            Event::Alias(_) => {
                return Err(Refused::at(
                    line,
                    "anchors and aliases (&, *) are not read; write the value out",
                ));
            }
            _ => return Err(Refused::at(line, "this is not YAML")),
        };
        Ok(Value { line, class: tag.and_then(|tag| class(&tag)), kind })
    }
}

/// The class of a tag, or `None` for the tags of YAML itself, such as `!!str`.
fn class(tag: &Tag) -> Option<String> {
    if tag.is_yaml_core_schema() && !tag.suffix.contains('.') {
        return None;
    }
    let name = format!("{}{}", if tag.is_yaml_core_schema() { "" } else { &tag.handle }, tag.suffix);
    Some(name.trim_matches('!').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Vec<Entry> {
        match read(text).unwrap().kind {
            Kind::Map(entries) => entries,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tags_of_every_spelling_name_their_class() {
        for tag in [
            "!<org.redisson.codec.JsonJacksonCodec>",
            "!!org.redisson.codec.JsonJacksonCodec",
            "!org.redisson.codec.JsonJacksonCodec",
        ] {
            for value in ["{}", "\"\"", "", "{ a: 1 }"] {
                let entries = entries(&format!("codec: {tag} {value}\nb: 1\n"));
                assert_eq!(
                    entries[0].value.class.as_deref(),
                    Some("org.redisson.codec.JsonJacksonCodec"),
                    "{tag} {value}"
                );
                assert_eq!((entries[1].key.as_str(), entries[1].line), ("b", 2));
            }
        }
        assert_eq!(entries("a: !!str 1")[0].value.class, None);
    }

    #[test]
    fn nulls_are_told_from_texts() {
        let kinds: Vec<_> = entries("a: null\nb:\nc: ~\nd: 'null'\ne: \"\"\n")
            .into_iter()
            .map(|entry| entry.value.kind)
            .collect();
        assert_eq!(kinds[..3], [Kind::Null, Kind::Null, Kind::Null]);
        assert_eq!(kinds[3..], [Kind::Scalar("null".into()), Kind::Scalar(String::new())]);
        for empty in ["", "# nothing\n", "---\n", "null"] {
            assert_eq!(read(empty).unwrap().kind, Kind::Null, "{empty:?}");
        }
    }

    #[test]
    fn what_is_no_tree_is_refused_with_its_line() {
        for (text, line) in [
            ("a: 1\nb: [1, 2", 2),
            ("a: 1\nb: &x 1\nc: *x\n", 3),
            ("a: 1\n\tb: 2", 2),
            ("? [a]\n: 1", 1),
            ("a: 'x", 1),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.line.abs_diff(line) <= 1, "{text:?}: {refused:?}");
        }
        assert!(read(&format!("a: {}1{}", "[".repeat(60), "]".repeat(60))).is_err());
        assert!(read(&format!("a: [{}]", "1,".repeat(30_000))).is_err());
    }
}
