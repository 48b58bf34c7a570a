//! What the engine tells of messages and changes.

/// Delivers messages.
pub trait Publisher: Send + Sync {
    /// Hands a message to the subscribers of a channel and returns how many there are.
    fn publish(&self, channel: &[u8], payload: &[u8]) -> usize;

    /// The same for a sharded channel (`SPUBLISH`). One machine has one shard, so this is `publish` unless the
    /// two kinds of subscribers are kept apart.
    fn publish_sharded(&self, channel: &[u8], payload: &[u8]) -> usize {
        self.publish(channel, payload)
    }

    /// A [watched](crate::Engine::watch) key has gone, or an element of it, or another value has taken its place.
    fn changed(&self, _key: &[u8]) {}

    /// Every key has gone, and with them all that were watched.
    fn cleared(&self) {}
}
