//! What the fuzzer calls (`scripts/fuzz`): everything here that reads what the library did not write. The tests below read its corpus.

use std::collections::BTreeSet;

use crate::{
    config::{RedissonYaml, url::StoreUrl},
    keys::{KeyKind, Keys},
    name::LockName,
    store::redis,
};

/// What the corpus has for a password.
const SECRET: &str = "hunter2";

/// A URL. What is wrong with it is said without it.
pub fn urls(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match StoreUrl::parse_with_options(text) {
        Ok((url, _)) => _ = url.to_string(),
        Err(error) => assert!(!format!("{error} {error:?}").contains(SECRET)),
    }
}

/// A file in Redisson's format.
pub fn redisson(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let lookup = |name: &str| (name == "SET").then(|| "redis://127.0.0.1:6379".to_owned());
    if let Ok(config) = RedissonYaml::parse(text, lookup) {
        _ = (config.url(), config.notices(), config.values());
    }
}

/// A name: refused, or all keys of it are in one slot, and each is another one.
pub fn names(bytes: &[u8]) {
    let Ok(name) = LockName::new(bytes) else { return };
    let shown = format!("{name} {name:?}");
    assert!(!shown.contains(char::is_control), "{shown:?}");
    for kind in [KeyKind::Lock, KeyKind::Fair, KeyKind::Read, KeyKind::Write, KeyKind::Permits] {
        let keys = Keys::new(name.clone(), kind);
        let mut derived = vec![keys.key.clone(), keys.channel().clone(), keys.token().clone()];
        derived.extend([&keys.queue, &keys.timeouts].into_iter().filter(|key| !key.is_empty()).cloned());
        let slots: BTreeSet<u16> = derived.iter().map(|key| redis::slot_of(key)).collect();
        assert_eq!(slots.len(), 1, "{derived:?}");
        assert_eq!(derived.iter().collect::<BTreeSet<_>>().len(), derived.len(), "{derived:?}");
    }
}

/// What a server sends.
pub fn answers(bytes: &[u8]) {
    redis::fuzzing::answers(bytes);
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// Each file of the corpus, and what was found to go wrong once.
    fn all_of(target: &str, run: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let mut count = 0;
        for file in fs::read_dir(folder).expect("the corpus is part of the repository") {
            run(&fs::read(file.expect("a file").path()).expect("a file"));
            count += 1;
        }
        assert!(count > 0, "{target}");
    }

    #[test]
    fn the_corpus_of_the_fuzzer_does_no_harm() {
        all_of("urls", super::urls);
        all_of("redisson", super::redisson);
        all_of("names", super::names);
        all_of("answers", super::answers);
    }
}
