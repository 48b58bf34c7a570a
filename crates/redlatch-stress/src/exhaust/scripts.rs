//! The scripts as they are shipped, one of them perhaps with a line changed, and what Redisson does to the same keys.

use std::{borrow::Cow, collections::HashMap};

use redlatch::scripts;

/// Redisson's effects as `docs/protocol.md` tells them, in words of our own.
const JAVA: &[(&str, &str)] = &[
    ("java/lock", include_str!("java/lock.lua")),
    ("java/unlock", include_str!("java/unlock.lua")),
    ("java/renew", include_str!("java/renew.lua")),
    ("java/delete", include_str!("java/delete.lua")),
    ("java/fair_lock", include_str!("java/fair_lock.lua")),
    ("java/fair_give_up", include_str!("java/fair_give_up.lua")),
    ("java/fair_unlock", include_str!("java/fair_unlock.lua")),
    ("java/read_lock", include_str!("java/read_lock.lua")),
    ("java/read_unlock", include_str!("java/read_unlock.lua")),
    ("java/write_lock", include_str!("java/write_lock.lua")),
    ("java/write_unlock", include_str!("java/write_unlock.lua")),
    ("java/permit_take", include_str!("java/permit_take.lua")),
    ("java/permit_give", include_str!("java/permit_give.lua")),
    ("java/semaphore_add", include_str!("java/semaphore_add.lua")),
    ("java/semaphore_drain", include_str!("java/semaphore_drain.lua")),
];

/// What stands before the text of several scripts, and is changed in all of them.
const SHARED: (&str, &str) = ("readers", include_str!("../../../redlatch/src/scripts/readers.lua"));

/// A line of a script, and what stands there instead.
#[derive(Clone, Debug)]
pub(super) struct Mutant {
    pub(super) number: usize,
    pub(super) script: String,
    pub(super) before: String,
    pub(super) after: String,
    pub(super) model: String,
}

/// The texts by their names.
pub(super) struct Texts(HashMap<&'static str, Cow<'static, str>>);

impl Texts {
    /// # Errors
    ///
    /// When the script that is to be changed does not have the line exactly once.
    pub(super) fn with(mutant: Option<&Mutant>) -> Result<Texts, String> {
        let ours = scripts::ALL.iter().map(|script| (script.name(), Cow::Borrowed(script.source())));
        let java = JAVA.iter().map(|(name, text)| (*name, Cow::Borrowed(*text)));
        let mut texts: HashMap<_, _> = ours.chain(java).collect();
        let Some(mutant) = mutant else { return Ok(Texts(texts)) };
        let mut changed = 0;
        for (name, text) in &mut texts {
            if *name != mutant.script && !(mutant.script == SHARED.0 && text.starts_with(SHARED.1)) {
                continue;
            }
            let found = text.matches(mutant.before.as_str()).count();
            if found != 1 {
                return Err(format!(
                    "mutant {}: {} has {:?} {found} times, and it has to be there once",
                    mutant.number, mutant.script, mutant.before
                ));
            }
            *text = Cow::Owned(text.replacen(mutant.before.as_str(), &mutant.after, 1));
            changed += 1;
        }
        if changed == 0 {
            return Err(format!("mutant {}: there is no script {}", mutant.number, mutant.script));
        }
        Ok(Texts(texts))
    }

    pub(super) fn get(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("a model calls a script that there is, and not {name}"))
    }
}
