//! The keys of series, each made once: a key has its labels and its hash, and most of an event's time would go into making them.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use metrics::{Key, Label, SharedString};
use redlatch::observe::{Classes, Subject};

/// What is known, each made once.
type Known<K, V> = RwLock<HashMap<K, Arc<V>>>;

/// The keys of all that an observer was told of so far: of a bounded number of classes, and of as many scripts as there are.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    classes: Classes,
    of_classes: Known<(&'static str, Arc<str>), OfClass>,
    of_scripts: Known<&'static str, OfScript>,
}

impl Keys {
    pub(crate) fn of(&self, subject: &Subject<'_>) -> Arc<OfClass> {
        let (kind, class) = (subject.kind, self.classes.of(subject.kind, subject.name));
        known_or(&self.of_classes, (kind, class), |(kind, class)| OfClass::new(kind, class.clone()))
    }

    pub(crate) fn of_script(&self, script: &'static str) -> Arc<OfScript> {
        known_or(&self.of_scripts, script, |script| OfScript::new(script))
    }
}

/// What is known for that, or is from now on.
fn known_or<K: std::hash::Hash + Eq, V>(known: &Known<K, V>, of: K, make: impl FnOnce(&K) -> V) -> Arc<V> {
    if let Some(value) = known.read().unwrap_or_else(PoisonError::into_inner).get(&of) {
        return value.clone();
    }
    let value = make(&of);
    known.write().unwrap_or_else(PoisonError::into_inner).entry(of).or_insert_with(|| value.into()).clone()
}

/// The keys of a kind and class.
#[derive(Debug)]
pub(crate) struct OfClass {
    pub(crate) waiting: Key,
    pub(crate) acquire_duration: Key,
    pub(crate) acquires: ByWord,
    pub(crate) held: Key,
    pub(crate) hold_duration: Key,
    pub(crate) holds_ended: ByWord,
}

impl OfClass {
    fn new(kind: &'static str, class: Arc<str>) -> Self {
        let labels =
            vec![Label::from_static_parts("kind", kind), Label::new("class", SharedString::from(class))];
        let key = |name| Key::from_parts(name, labels.clone());
        OfClass {
            waiting: key("redlatch_waiting"),
            acquire_duration: key("redlatch_acquire_duration_seconds"),
            acquires: ByWord::new("redlatch_acquires_total", "outcome", labels.clone()),
            held: key("redlatch_held"),
            hold_duration: key("redlatch_hold_duration_seconds"),
            holds_ended: ByWord::new("redlatch_holds_ended_total", "end", labels.clone()),
        }
    }
}

/// The keys of a script.
#[derive(Debug)]
pub(crate) struct OfScript {
    pub(crate) duration: Key,
    pub(crate) calls: ByWord,
}

impl OfScript {
    fn new(script: &'static str) -> Self {
        let labels = vec![Label::from_static_parts("script", script)];
        OfScript {
            duration: Key::from_parts("redlatch_call_duration_seconds", labels.clone()),
            calls: ByWord::new("redlatch_calls_total", "outcome", labels),
        }
    }
}

/// The keys of a counter whose last label is one of few words.
#[derive(Debug)]
pub(crate) struct ByWord {
    name: &'static str,
    label: &'static str,
    labels: Vec<Label>,
    keys: RwLock<Vec<(&'static str, Arc<Key>)>>,
}

impl ByWord {
    fn new(name: &'static str, label: &'static str, labels: Vec<Label>) -> Self {
        ByWord { name, label, labels, keys: RwLock::default() }
    }

    pub(crate) fn with(&self, word: &'static str) -> Arc<Key> {
        let known = |keys: &Vec<(&'static str, Arc<Key>)>| {
            keys.iter().find(|(known, _)| *known == word).map(|(_, key)| key.clone())
        };
        if let Some(key) = known(&self.keys.read().unwrap_or_else(PoisonError::into_inner)) {
            return key;
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        known(&keys).unwrap_or_else(|| {
            let labels = self.labels.iter().cloned().chain([Label::from_static_parts(self.label, word)]);
            let key = Arc::new(Key::from_parts(self.name, labels.collect::<Vec<_>>()));
            keys.push((word, key.clone()));
            key
        })
    }
}
