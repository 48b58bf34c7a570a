//! What is known of a script besides its text. It stands beside the script's name in the list, so that a new one says it there and nowhere else.

/// One thing that is true of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fact {
    /// It touches keys that it does not name, or several keys with one command: it is not sent to a node that may lack some of them.
    NeedsDeclaredKeys,
    /// Its callers go on in another way while the keys are in two places.
    HasMigrationFallback,
    /// It can be sent with its first key alone declared: what it needs of the others it reads before it writes.
    LooksFirst,
    /// It calls commands that a server without free memory refuses, and gives something back, which such a server should let it do.
    GivesBack,
    /// It reads whatever keys it finds. Scripts may do that in a cluster, functions only if they say so.
    CrossesSlots,
    /// It changes something before it touches a timeout key, so that a refusal of such a key comes too late.
    ChangesFirst,
    /// Where it finds or takes a read hold it has touched the timeout key of that.
    TouchesTimeouts,
    /// It calls these commands only to draw a token.
    ForTokens(&'static [&'static str]),
}
