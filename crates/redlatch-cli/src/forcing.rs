//! Taking a name from the holder that a person has seen, and from nobody else: what `top` and `serve` do.

use redlatch::{Client, Forced, LockName};

use crate::{escape, run::kind::Detached};

/// What became of it.
pub(crate) struct Outcome {
    /// The holder has lost it.
    pub(crate) is_taken: bool,
    /// In words. Safe to print.
    pub(crate) told: String,
}

/// Takes the name from this owner. The holder is told who did it and why.
pub(crate) async fn force(client: &Client, name: &LockName, owner: &str, by: &str, reason: &str) -> Outcome {
    let quoted = escape::quoted(name);
    let forced = match Detached::find(client, name, owner, None).await {
        Ok(held) => held.force(owner, by, reason).await,
        Err(failure) => Err(failure),
    };
    let told = match &forced {
        Ok(Forced::Released) => format!("{quoted} was taken from {}", escape::text(owner)),
        Ok(Forced::WasFree) => format!("{quoted} is free already; nothing was changed"),
        Ok(_) => format!("{quoted} has another holder now; nothing was changed"),
        Err(failure) => escape::text(&failure.to_string()).to_string(),
    };
    Outcome { is_taken: matches!(forced, Ok(Forced::Released)), told }
}
