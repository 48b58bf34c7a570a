//! What a server has, with all times counted from now, so that states which differ by the hour alone are one.

use redlatch_engine::Effect;

/// The engine's clocks stand still here; time goes on by [`Keyspace::tick`].
pub(super) const UNIX_MS: i64 = 1_700_000_000_000;
/// Where the boot clock of the engine's manual clock begins.
const BOOT_MS: i64 = 1_000_000;
/// What a token drawn from the clock at this moment is here. 0 stays the reply that none was drawn.
pub(super) const TOKEN_NOW: i64 = 1_000_000;
/// A token of an earlier moment. How much earlier makes no difference to any script.
pub(super) const TOKEN_BEFORE: i64 = TOKEN_NOW - 1;
/// The score of a permit that never ends.
pub(super) const NEVER_MS: i64 = 922_337_203_685_477;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Content {
    Text(String),
    Token(i64),
    /// Sorted by field.
    Hash(Vec<(String, String)>),
    List(Vec<String>),
    /// A sorted set whose scores are moments, in ms from now. One that has passed is at -1.
    Times(Vec<(String, i64)>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) left_ms: Option<i64>,
    pub(super) content: Content,
}

/// Sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Keyspace(pub(super) Vec<Key>);

/// A number of a reply: moments and tokens are counted from now, too.
pub(super) fn from_now(number: i64) -> i64 {
    match number {
        1_000_000_000_000_000.. => (number - UNIX_MS * 1000 + TOKEN_NOW).max(TOKEN_BEFORE),
        1_000_000_000_000.. => number - UNIX_MS,
        _ => number,
    }
}

/// A counter of tokens. Redisson's may begin at 1, which is before now.
fn token(text: &str) -> i64 {
    text.parse::<i64>().map_or(0, |number| (number - UNIX_MS * 1000 + TOKEN_NOW).max(TOKEN_BEFORE))
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("all names and values of the models are text")
}

impl Keyspace {
    /// From the changes that build it.
    pub(super) fn of(effects: Vec<Effect>) -> Keyspace {
        let mut keys: Vec<Key> = Vec::new();
        let left = |at: u64| at as i64 - BOOT_MS;
        for effect in effects {
            match effect {
                Effect::SetString { key, value, expires_at_ms } => {
                    let (name, value) = (text(key), text(value));
                    let is_token = name.starts_with("redisson_lock_token:");
                    let content = if is_token { Content::Token(token(&value)) } else { Content::Text(value) };
                    keys.push(Key { name, left_ms: expires_at_ms.map(left), content });
                }
                Effect::HashSet { key, field, value } => {
                    if let Content::Hash(fields) = collection(&mut keys, key, Content::Hash(Vec::new())) {
                        fields.push((text(field), text(value)));
                    }
                }
                Effect::ListPush { key, value, .. } => {
                    if let Content::List(values) = collection(&mut keys, key, Content::List(Vec::new())) {
                        values.push(text(value));
                    }
                }
                Effect::SortedSet { key, member, score } => {
                    if let Content::Times(times) = collection(&mut keys, key, Content::Times(Vec::new())) {
                        let score = score as i64;
                        let score = if score >= NEVER_MS { NEVER_MS } else { (score - UNIX_MS).max(-1) };
                        times.push((text(member), score));
                    }
                }
                Effect::Expire { key, expires_at_ms } => {
                    let name = text(key);
                    if let Some(key) = keys.iter_mut().find(|known| known.name == name) {
                        key.left_ms = expires_at_ms.map(left);
                    }
                }
                _ => {}
            }
        }
        for key in &mut keys {
            match &mut key.content {
                Content::Hash(fields) => fields.sort_unstable(),
                Content::Times(times) => times.sort_unstable(),
                _ => {}
            }
        }
        keys.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Keyspace(keys)
    }

    /// The changes that build it. Fields of hashes come `turned` by so many places, because commands that pick some of them at random
    /// go by the order here.
    pub(super) fn effects(&self, turned: usize) -> Vec<Effect> {
        let mut effects = vec![Effect::Clear];
        for Key { name, left_ms, content } in &self.0 {
            let key = || name.clone().into_bytes();
            let expires_at_ms = left_ms.map(|left| (BOOT_MS + left) as u64);
            match content {
                Content::Text(value) => {
                    effects.push(Effect::SetString {
                        key: key(),
                        value: value.clone().into(),
                        expires_at_ms,
                    });
                    continue;
                }
                Content::Token(token) => {
                    let value = (token - TOKEN_NOW + UNIX_MS * 1000).to_string();
                    effects.push(Effect::SetString { key: key(), value: value.into(), expires_at_ms });
                    continue;
                }
                Content::Hash(fields) => {
                    for at in 0..fields.len() {
                        let (field, value) = &fields[(at + turned) % fields.len()];
                        let (field, value) = (field.clone().into(), value.clone().into());
                        effects.push(Effect::HashSet { key: key(), field, value });
                    }
                }
                Content::List(values) => effects.extend(values.iter().map(|value| Effect::ListPush {
                    key: key(),
                    value: value.clone().into(),
                    front: false,
                })),
                Content::Times(times) => effects.extend(times.iter().map(|(member, ms)| {
                    let score = if *ms == NEVER_MS { NEVER_MS } else { UNIX_MS + ms };
                    Effect::SortedSet { key: key(), member: member.clone().into(), score: score as f64 }
                })),
            }
            if expires_at_ms.is_some() {
                effects.push(Effect::Expire { key: key(), expires_at_ms });
            }
        }
        effects
    }

    /// The most fields that a hash has.
    pub(super) fn widest(&self) -> usize {
        let widths = self.0.iter().map(|key| match &key.content {
            Content::Hash(fields) => fields.len(),
            _ => 1,
        });
        widths.max().unwrap_or(1)
    }

    /// The same so much later: a key lives until its time has passed, and not only come, as in Redis.
    pub(super) fn tick(&self, ms: i64) -> Keyspace {
        let later = self.0.iter().filter_map(|key| {
            let left_ms = key.left_ms.map(|left| left - ms);
            if left_ms.is_some_and(|left| left < 0) {
                return None;
            }
            let content = match &key.content {
                Content::Token(token) => Content::Token((token - ms * 1000).max(TOKEN_BEFORE)),
                Content::Times(times) => {
                    let later = |at: i64| if at == NEVER_MS { at } else { (at - ms).max(-1) };
                    Content::Times(times.iter().map(|(member, at)| (member.clone(), later(*at))).collect())
                }
                other => other.clone(),
            };
            Some(Key { name: key.name.clone(), left_ms, content })
        });
        Keyspace(later.collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&Key> {
        self.0.iter().find(|key| key.name == name)
    }

    pub(super) fn list(&self, name: &str) -> &[String] {
        match self.get(name).map(|key| &key.content) {
            Some(Content::List(values)) => values,
            _ => &[],
        }
    }

    pub(super) fn times(&self, name: &str) -> &[(String, i64)] {
        match self.get(name).map(|key| &key.content) {
            Some(Content::Times(times)) => times,
            _ => &[],
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<i64> {
        match self.get(name).map(|key| &key.content) {
            Some(Content::Text(text)) => text.parse().ok(),
            Some(Content::Token(token)) => Some(*token),
            _ => None,
        }
    }
}

fn collection(keys: &mut Vec<Key>, key: Vec<u8>, empty: Content) -> &mut Content {
    let name = text(key);
    let at = keys.iter().position(|known| known.name == name).unwrap_or_else(|| {
        keys.push(Key { name, left_ms: None, content: empty });
        keys.len() - 1
    });
    &mut keys[at].content
}
