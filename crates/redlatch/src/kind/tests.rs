use super::{found::Seen, key_pattern::KeyPattern, *};

/// Reads which of the documents' rows are missing, and says what belongs there.
#[track_caller]
fn has_rows(document: &str, name: &str, rows: &[String]) {
    let missing: Vec<&str> = rows.iter().map(String::as_str).filter(|row| !document.contains(row)).collect();
    assert!(missing.is_empty(), "{name} wants these rows:\n{}", missing.join("\n"));
}

#[test]
fn the_documented_kinds_of_a_listing_are_these() {
    let row = |kind: LockKind| {
        let looks = found::LOOKS.iter().find(|looks| looks.found == kind).unwrap();
        let listed = match kind.is_usual() {
            true => "yes".to_owned(),
            false => format!("only with `--all` or `--kind {}`", kind.word()),
        };
        format!("| `{}` | {} | {listed} |\n", kind.word(), looks.on_server)
    };
    has_rows(include_str!("../../../../docs/looking.md"), "docs/looking.md", &LockKind::LISTED.map(row));
}

#[test]
fn every_type_has_its_row_in_the_readme() {
    let faces = Kind::ALL.into_iter().flat_map(|kind| kind.description().faces);
    let rows: Vec<String> = faces
        .map(|(here, there)| match *there {
            "" => format!("\n| `{here}` | – | "),
            there => format!("\n| `{here}` | `{there}`"),
        })
        .collect();
    has_rows(include_str!("../../../../README.md"), "README.md", &rows);
}

#[test]
fn every_key_and_channel_is_documented() {
    let document = include_str!("../../../../docs/protocol.md");
    for kind in Kind::ALL.map(Kind::description) {
        for place in kind.keys.iter().chain(kind.channels).chain(kind.redisson.keys) {
            let shown = match place {
                KeyPattern::Name => "N".to_owned(),
                KeyPattern::Before(word) | KeyPattern::InBraces(word) => format!("{word}{{N}}"),
                KeyPattern::OfClient(word) => format!("{word}{{ID}}"),
                // Whose it is, and the how many-th, stand for any.
                KeyPattern::After(word) => {
                    format!("{{N}}{}", word.replace(":owner:", ":<owner>:").replace(":1", ":<i>"))
                }
            };
            let row = ["`", ":…`"].iter().any(|end| document.contains(&format!("\n| `{shown}{end}")));
            assert!(
                row,
                "docs/protocol.md wants a row for the key or channel `{shown}` of {kind}",
                kind = kind.word
            );
        }
    }
}

#[test]
fn nothing_is_found_as_two_things() {
    for bits in 0..1 << 6 {
        let bit = |at: u32| bits >> at & 1 == 1;
        for key_type in ["none", "hash", "string", "list"] {
            let seen = Seen {
                key_type: key_type.as_bytes(),
                mode: bit(0),
                rate: bit(1),
                owner: bit(2),
                queue: bit(3),
                number: bit(4),
                permits: bit(5),
            };
            let found: Vec<&str> =
                found::LOOKS.iter().filter(|looks| (looks.is)(&seen)).map(|looks| looks.word).collect();
            assert!(found.len() < 2, "{seen:?} is {found:?}");
        }
    }
}

#[test]
fn whatever_can_be_listed_is_found_of_a_kind_and_told_on_channels_of_it() {
    for found in LockKind::LISTED {
        assert_eq!(Kind::behind(found).found_as(), Some(found));
    }
    let told = |found: LockKind| found.channels().iter().map(|place| place.word()).collect::<Vec<_>>();
    assert_eq!(told(LockKind::Free), told(LockKind::Lock));
    assert_eq!(told(LockKind::Lock), ["redisson_lock__channel:"]);
    assert_eq!(told(LockKind::Counter), ["redisson_sc:", "redisson_countdownlatch__channel__"]);
    assert_eq!(told(LockKind::Fair), [""; 0], "each of its waiters has one of its own");
}

#[test]
fn every_kind_has_a_word_of_its_own() {
    let words: std::collections::BTreeSet<&str> = Kind::ALL.into_iter().map(Kind::word).collect();
    assert!(words.len() == Kind::ALL.len() && !words.contains(""));
}
