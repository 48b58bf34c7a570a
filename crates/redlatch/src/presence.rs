//! What a client tells others of itself while it holds or waits: its options, and the record as fields of a Redis hash.
//!
//! The record holds nothing that grants or ends a lock. An account that may write it may write lies, so what is shown of a hold is what the lock's own key
//! says, and the record adds who that is.

use std::{path::Path, sync::Arc, time::Duration};

use crate::name::LockName;

/// How long a record lasts that is not written again.
pub(crate) const RECORD_TTL: Duration = Duration::from_secs(60);
/// For how long a loss is told, also when its client has been shut down since.
pub(crate) const LOSS_TOLD: Duration = Duration::from_secs(600);
/// How many losses a record has, the last ones.
pub(crate) const LOSSES_MAX: usize = 10;
/// How many holds and how many waits a record has, the oldest first.
pub(crate) const ITEMS_MAX: usize = 50;
/// How many bytes their names have together.
const NAME_BYTES_MAX: usize = 8_192;
/// Of how many owners it says that it works under them.
const UNDER_MAX: usize = 10;
/// The longest text of a record, in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// How many fields of a record are read, and how many bytes a field may have: others write it.
const FIELDS_READ_MAX: usize = 500;
const FIELD_BYTES_READ_MAX: usize = 8_192;

/// Whether and how a client tells others what it holds and waits for.
///
/// A client that holds or waits for longer than a second keeps one record on its server, `redlatch:client:{id}`: host, process, program, user, version,
/// and what it holds and waits for, since when; and for ten minutes what it has lost, and how. It is what `redlatch show` and `redlatch why` know of a holder besides its owner. It is written at most
/// once in 10 s on average, lasts for 60 s after that, or as long as a loss is to be told, and nothing depends on it. It has no secret in it, and no arguments of the program. An account
/// without the rights ([`Kind::Presence`](crate::acl::Kind::Presence)) tells nothing.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// use redlatch::{Client, Presence};
///
/// let presence = Presence::told().program("billing").why("nightly import");
/// let client = Client::builder().url("memory:").presence(presence).connect().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Presence {
    pub(crate) is_told: bool,
    program: Option<Arc<str>>,
    why: Option<Arc<str>>,
    traceparent: Option<Arc<str>>,
    under: Vec<Arc<str>>,
}

impl Default for Presence {
    fn default() -> Self {
        Presence::told()
    }
}

impl Presence {
    /// It is told, which is what a client does unless set otherwise.
    pub fn told() -> Self {
        Presence { is_told: true, program: None, why: None, traceparent: None, under: Vec::new() }
    }

    /// Nothing is told.
    pub fn untold() -> Self {
        Presence { is_told: false, ..Presence::told() }
    }

    /// The name of the program, up to 256 bytes; that of the executable file unless set.
    pub fn program(self, program: &str) -> Self {
        Presence { program: Some(cut(program).into()), ..self }
    }

    /// What the client does that needs locks, in words for those who wait, up to 256 bytes; nothing unless set.
    pub fn why(self, why: &str) -> Self {
        Presence { why: Some(cut(why).into()), ..self }
    }

    /// The trace that the client's work belongs to, as the header `traceparent` of W3C Trace Context has it; nothing unless set.
    pub fn traceparent(self, traceparent: &str) -> Self {
        Presence { traceparent: Some(cut(traceparent).into()), ..self }
    }

    /// The client works under a hold of this owner, which another client has: what it waits for keeps that hold up. At most 10 owners.
    pub fn under(mut self, owner: &str) -> Self {
        if self.under.len() < UNDER_MAX {
            self.under.push(cut(owner).into());
        }
        self
    }

    /// What is told of the process, which does not change.
    pub(crate) fn identity(&self) -> Vec<(&'static str, String)> {
        let program = self.program.as_deref().map_or_else(program_name, str::to_owned);
        let mut fields = vec![
            ("host", cut(&rustix::system::uname().nodename().to_string_lossy()).to_owned()),
            ("pid", std::process::id().to_string()),
            ("program", cut(&program).to_owned()),
            ("user", user()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        if !self.under.is_empty() {
            fields.push(("under", self.under.join("\n")));
        }
        let said = [("why", &self.why), ("traceparent", &self.traceparent)];
        fields
            .extend(said.into_iter().filter_map(|(field, text)| Some((field, text.as_deref()?.to_owned()))));
        fields
    }
}

fn program_name() -> String {
    let of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    std::env::current_exe().ok().as_deref().and_then(of).unwrap_or_default()
}

/// The name of the user as the environment has it, or as the machine lists it, or else the number.
fn user() -> String {
    let variables = ["USER", "LOGNAME"].into_iter().filter_map(|variable| std::env::var(variable).ok());
    let number = rustix::process::getuid().as_raw().to_string();
    let listed = || user_listed(&std::fs::read_to_string("/etc/passwd").unwrap_or_default(), &number);
    let named = variables.into_iter().find(|name| !name.is_empty()).or_else(listed);
    cut(&named.unwrap_or(number)).to_owned()
}

/// The name of a user, from lines such as `cron:x:17:…`.
fn user_listed(lines: &str, number: &str) -> Option<String> {
    let mut users = lines.lines().map(|line| line.split(':'));
    users.find_map(|mut line| {
        let (name, mut rest) = (line.next()?, line.skip(1));
        (rest.next()? == number && !name.is_empty()).then(|| name.to_owned())
    })
}

/// The beginning of a text, in whole characters.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A hold of a client or a wait, as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldOrWait {
    /// The name.
    pub name: LockName,
    /// What it is in a word: `lock`, `fair`, `read`, `write`, `permits`, `semaphore`, `latch`, `rate`.
    pub kind: String,
    /// The owner, if one is known: a task that waits behind another one of its process has none yet.
    pub owner: Option<String>,
    /// Which task of the client it is, as a number that is good within one record; `None` outside of a task.
    pub task: Option<u64>,
    /// For how long it had lasted when it was read.
    pub lasts: Duration,
}

impl HoldOrWait {
    /// Ordered as they are told: the oldest first, and the same ones always in the same order.
    pub(crate) fn rank(&self) -> impl Ord + use<> {
        (std::cmp::Reverse(self.lasts), self.name.clone(), self.owner.clone(), self.kind.clone())
    }

    fn line(&self) -> Vec<u8> {
        let task = self.task.map_or_else(|| "-".to_owned(), |task| task.to_string());
        let owner = self.owner.as_deref().unwrap_or("-");
        let mut line = format!("{} {} {task} {owner} ", self.kind, self.lasts.as_millis()).into_bytes();
        line.extend_from_slice(self.name.as_bytes());
        line
    }

    fn parse(line: &[u8]) -> Option<HoldOrWait> {
        let mut parts = line.splitn(5, |byte| *byte == b' ');
        let mut text = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
        let (kind, lasts, task, owner) = (text()?, text()?, text()?, text()?);
        let name = LockName::unchecked(parts.next()?);
        name.check().ok()?;
        Some(HoldOrWait {
            name,
            kind: cut(kind).to_owned(),
            owner: (owner != "-").then(|| cut(owner).to_owned()),
            task: if task == "-" { None } else { Some(task.parse().ok()?) },
            lasts: Duration::from_millis(lasts.parse().ok()?),
        })
    }
}

/// A hold that a client had for longer than a second and has lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostHold {
    /// The name.
    pub name: LockName,
    /// What it was in a word, as [`HoldOrWait::kind`].
    pub kind: String,
    /// The owner.
    pub owner: String,
    /// How it was lost, up to 256 bytes: a [`LossReason`](crate::LossReason) in words, and that another server process has taken over if one has.
    pub reason: String,
    /// How long ago that was when the record was read.
    pub ago: Duration,
}

impl LostHold {
    fn line(&self) -> Vec<u8> {
        let name = self.name.as_bytes();
        let line = format!("{} {} {} {} ", self.kind, self.ago.as_millis(), self.owner, name.len());
        [line.as_bytes(), name, b" ", cut(&self.reason).as_bytes()].concat()
    }

    fn parse(line: &[u8]) -> Option<LostHold> {
        let mut parts = line.splitn(5, |byte| *byte == b' ');
        let mut text = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
        let (kind, ago, owner, name_bytes) = (text()?, text()?, text()?, text()?);
        let (name, reason) = parts.next()?.split_at_checked(name_bytes.parse().ok()?)?;
        let name = LockName::unchecked(name);
        name.check().ok()?;
        Some(LostHold {
            name,
            kind: cut(kind).to_owned(),
            owner: cut(owner).to_owned(),
            reason: cut(&String::from_utf8_lossy(reason.strip_prefix(b" ")?)).to_owned(),
            ago: Duration::from_millis(ago.parse().ok()?),
        })
    }
}

/// What a client tells of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientRecord {
    /// The id of the client: the first 36 characters of its owners.
    pub id: String,
    /// The host's name.
    pub host: String,
    /// The process, as the host or its container counts.
    pub pid: Option<u32>,
    /// The program.
    pub program: String,
    /// The user that it runs as.
    pub user: String,
    /// The version of Redlatch.
    pub version: String,
    /// What it does that needs locks.
    pub why: Option<String>,
    /// The trace that its work belongs to.
    pub traceparent: Option<String>,
    /// The owners under whose holds it works, which other clients have: what it waits for keeps these holds up.
    pub under: Vec<String>,
    /// For how long the client has been there.
    pub lives: Duration,
    /// What it holds, the oldest first, at most 50.
    pub holds: Vec<HoldOrWait>,
    /// What it waits for, the oldest first, at most 50.
    pub waits: Vec<HoldOrWait>,
    /// How many holds and waits it has beyond these.
    pub more: u64,
    /// What it has lost within the last ten minutes, the last first, at most 10.
    pub losses: Vec<LostHold>,
    /// The client has been shut down. What it has lost is told all the same.
    pub is_over: bool,
    /// How long ago it was written.
    pub age: Duration,
}

/// What is written of holds and waits.
#[derive(Default)]
pub(crate) struct Items {
    pub(crate) holds: Vec<HoldOrWait>,
    pub(crate) waits: Vec<HoldOrWait>,
    /// How many there are beyond these.
    pub(crate) more: u64,
    /// The last first.
    pub(crate) losses: Vec<LostHold>,
}

impl Items {
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.waits.is_empty() && self.losses.is_empty()
    }

    /// As fields: those that the record has room for, and how many more there are.
    pub(crate) fn fields(&self) -> Vec<(String, Vec<u8>)> {
        let (mut fields, mut bytes, mut more) = (Vec::new(), 0, self.more);
        for (word, items) in [("wait", &self.waits), ("hold", &self.holds)] {
            for (at, item) in items.iter().enumerate() {
                bytes += item.name.as_bytes().len();
                if at >= ITEMS_MAX || bytes > NAME_BYTES_MAX {
                    more += 1;
                    continue;
                }
                fields.push((format!("{word}:{at}"), item.line()));
            }
        }
        for (at, loss) in self.losses.iter().take(LOSSES_MAX).enumerate() {
            bytes += loss.name.as_bytes().len();
            if bytes <= NAME_BYTES_MAX {
                fields.push((format!("lost:{at}"), loss.line()));
            }
        }
        if more > 0 {
            fields.push(("more".to_owned(), more.to_string().into_bytes()));
        }
        fields
    }
}

impl ClientRecord {
    /// Reads a record that lasts for so long from now. What is not understood is left out: another version, or a liar, may have written it.
    pub(crate) fn of<'a>(
        id: &str,
        left: Duration,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> ClientRecord {
        let written_for = fields.clone().find(|(field, _)| *field == b"ttl").and_then(|(_, ms)| {
            let ms = std::str::from_utf8(ms).ok()?.parse().ok()?;
            Some(Duration::from_millis(ms).min(LOSS_TOLD))
        });
        // By the server's clock: nobody's own is believed.
        let age = written_for.unwrap_or(RECORD_TTL).saturating_sub(left);
        let mut record = ClientRecord { id: id.to_owned(), age, ..ClientRecord::default() };
        for (field, value) in fields.take(FIELDS_READ_MAX) {
            if value.len() > FIELD_BYTES_READ_MAX {
                continue;
            }
            let Ok(field) = std::str::from_utf8(field) else { continue };
            let text = || cut(&String::from_utf8_lossy(value)).to_owned();
            let told = || {
                HoldOrWait::parse(value)
                    .map(|told| HoldOrWait { lasts: told.lasts.saturating_add(age), ..told })
            };
            match field {
                "host" => record.host = text(),
                "pid" => record.pid = text().parse().ok(),
                "program" => record.program = text(),
                "user" => record.user = text(),
                "version" => record.version = text(),
                "why" => record.why = Some(text()),
                "traceparent" => record.traceparent = Some(text()),
                "under" => {
                    let owners = String::from_utf8_lossy(value);
                    record.under =
                        owners.lines().take(UNDER_MAX).map(|owner| cut(owner).to_owned()).collect();
                }
                "lives" => {
                    record.lives = Duration::from_millis(text().parse().unwrap_or(0)).saturating_add(age);
                }
                "more" => record.more = text().parse().unwrap_or(0),
                "over" => record.is_over = value == b"1",
                _ if field.starts_with("lost:") => {
                    let lost = LostHold::parse(value);
                    record
                        .losses
                        .extend(lost.map(|lost| LostHold { ago: lost.ago.saturating_add(age), ..lost }));
                }
                _ if field.starts_with("hold:") => record.holds.extend(told()),
                _ if field.starts_with("wait:") => record.waits.extend(told()),
                _ => {}
            }
        }
        record.losses.sort_by_cached_key(|lost| (lost.ago, lost.name.clone()));
        record.losses.truncate(LOSSES_MAX);
        record.holds.sort_by_cached_key(HoldOrWait::rank);
        record.waits.sort_by_cached_key(HoldOrWait::rank);
        record
    }

    /// What it tells of a hold.
    pub fn hold(&self, name: &LockName, owner: &str) -> Option<&HoldOrWait> {
        self.holds.iter().find(|hold| hold.name == *name && hold.owner.as_deref() == Some(owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &[u8], lasts_ms: u64) -> HoldOrWait {
        HoldOrWait {
            name: LockName::unchecked(name),
            kind: "lock".into(),
            owner: Some("id:7".into()),
            task: Some(3),
            lasts: Duration::from_millis(lasts_ms),
        }
    }

    #[test]
    fn what_is_told_is_read_again_with_the_time_since() {
        let waits = vec![HoldOrWait { owner: None, task: None, ..told(b"a b\xff\n", 9) }];
        let lost = LostHold {
            name: LockName::unchecked(b"a 9 \xff"),
            kind: "write".into(),
            owner: "id:7".into(),
            reason: "the lock was forced free by ops: it hung".into(),
            ago: Duration::from_millis(3),
        };
        let holds = vec![told(b"x", 2_000), told(b"y z", 1_000)];
        let items = Items { holds, waits, more: 0, losses: vec![lost.clone()] };
        let fields = items.fields();
        let own = [
            ("host", "web-7"),
            ("pid", "812"),
            ("why", "import"),
            ("lives", "5"),
            ("new", "?"),
            ("ttl", "60000"),
        ];
        let own = own.iter().map(|(field, value)| (field.as_bytes(), value.as_bytes()));
        let all = fields.iter().map(|(field, value)| (field.as_bytes(), &value[..])).chain(own);
        let age = Duration::from_millis(500);
        let record = ClientRecord::of("id", RECORD_TTL - age, all);
        assert_eq!((record.age, record.is_over), (age, false));
        assert_eq!(record.losses, [LostHold { ago: lost.ago + age, ..lost }]);
        let later = |item: &HoldOrWait| HoldOrWait { lasts: item.lasts + age, ..item.clone() };
        assert_eq!(record.holds, items.holds.iter().map(later).collect::<Vec<_>>());
        assert_eq!(record.waits, items.waits.iter().map(later).collect::<Vec<_>>());
        assert_eq!(
            (record.pid, record.why.as_deref(), record.lives.as_millis()),
            (Some(812), Some("import"), 505)
        );
        assert!(record.hold(&"x".into(), "id:7").is_some() && record.hold(&"x".into(), "id:8").is_none());
    }

    /// Cron sets neither variable.
    #[test]
    fn a_user_without_variables_is_named_as_the_machine_lists_it() {
        let lines = "root:x:0:0:root:/root:/bin/sh\n# no user\n:x:7:7::/:\nbackup:x:17:34::/:\n";
        assert_eq!(user_listed(lines, "17").as_deref(), Some("backup"));
        for nobody in ["7", "34", "170", ""] {
            assert_eq!(user_listed(lines, nobody), None, "{nobody}");
        }
    }

    #[test]
    fn a_record_is_bounded_whatever_is_held() {
        let holds: Vec<HoldOrWait> = (0..1_000).map(|at| told(&[b'n'; 400], at)).collect();
        let waits = holds[..60].to_vec();
        let lost = LostHold {
            name: LockName::unchecked(&[b'n'; 400]),
            kind: "lock".into(),
            owner: "id:7".into(),
            reason: "ä".repeat(1_000),
            ago: Duration::ZERO,
        };
        let losses = vec![lost; 100];
        let lost_alone = Items { losses: losses.clone(), ..Items::default() }.fields();
        assert_eq!(lost_alone.len(), LOSSES_MAX);
        assert!(lost_alone.iter().all(|(_, line)| line.len() < 400 + TEXT_BYTES_MAX + 50));
        let fields = Items { holds, waits, more: 0, losses }.fields();
        let bytes: usize = fields.iter().map(|(field, value)| field.len() + value.len()).sum();
        assert!(fields.len() < 2 * ITEMS_MAX + 2 && bytes < 16_384, "{} {bytes}", fields.len());
        let written = fields.len() as u64 - 1;
        assert_eq!(fields.last().unwrap().1, (1_060 - written).to_string().into_bytes());
        let presence = Presence::told().why(&"ä".repeat(1_000));
        assert_eq!(presence.why.as_deref().unwrap().len(), TEXT_BYTES_MAX);
    }

    /// Others may write the record.
    #[test]
    fn a_record_of_a_liar_costs_no_more_than_a_bound_and_nothing_else() {
        let long = vec![b'x'; FIELD_BYTES_READ_MAX + 1];
        let bad: [(&[u8], &[u8]); 11] = [
            (b"lost:0", b"lock 1 id:7 9 x gone"),
            (b"lost:1", b"lock 1 id:7 18446744073709551615 x gone"),
            (b"lost:2", b"lock 1 id:7 1 xgone"),
            (b"ttl", b"-1"),
            (b"host", &long),
            (b"hold:0", b"lock"),
            (b"hold:1", b"lock 99999999999999999999999 - - x"),
            (b"hold:2", b"lock 1 - - "),
            (b"wait:\xff", b"lock 1 - - x"),
            (b"pid", b"-4"),
            (b"lives", b"18446744073709551615"),
        ];
        let record = ClientRecord::of("id", Duration::from_secs(1), bad.into_iter());
        assert_eq!((record.losses.len(), record.age), (0, RECORD_TTL - Duration::from_secs(1)));
        assert_eq!((record.holds.len(), record.waits.len(), record.pid, &*record.host), (0, 0, None, ""));
        let many: Vec<_> = (0..2_000).map(|at| (format!("hold:{at}"), b"lock 1 - - x".to_vec())).collect();
        let many = many.iter().map(|(field, value)| (field.as_bytes(), &value[..]));
        assert_eq!(ClientRecord::of("id", RECORD_TTL, many).holds.len(), FIELDS_READ_MAX);
    }
}
