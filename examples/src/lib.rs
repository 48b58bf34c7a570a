//! What the numbered programs in `examples/` share: where their locks live.

/// The store's URL: the first argument, else `REDLATCH_URL`, else an engine inside this process.
///
/// The engine has a name, so that two clients of one program meet in it as two processes meet on a server.
pub fn url() -> String {
    std::env::args()
        .nth(1)
        .or_else(|| std::env::var("REDLATCH_URL").ok())
        .unwrap_or_else(|| "memory:examples".into())
}
