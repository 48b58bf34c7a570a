//! What a client has left in the keyspace.

/// Where something that belongs to a client was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TracePlace {
    /// A field of a hash without `mode`: the hold of a lock.
    Lock,
    /// A field of a hash with `mode`: a hold of a read-write lock.
    ReadWrite,
    /// A member of a sorted set: the time of a waiter.
    Queue,
}

/// A hold or a place in a queue of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// The key that it is in.
    pub key: Vec<u8>,
    /// The field or member: the owner, for a write hold with more behind it.
    pub field: String,
    /// What the key is.
    pub place: TracePlace,
}
