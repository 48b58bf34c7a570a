//! Calls at random: each a script with keys and arguments that make sense, or nearly.

use redlatch::{scripts, scripts::Script};

/// A reproducible source of choices.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }

    pub(super) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.roll(from.len())]
    }
}

pub(super) const OWNERS: [&str; 3] = [
    "1b671a64-40d5-491e-99b0-da01ff1f3341:1",
    "1b671a64-40d5-491e-99b0-da01ff1f3341:2",
    "aaaaaaaa-40d5-4ed1-a7c4-da01ff1f3341:1",
];
/// State that scripts of other kinds leave, with deadlines far away or long ago.
pub(super) const BESIDE: [&[&str]; 9] = [
    &["RPUSH", "redisson_lock_queue:{b}", OWNERS[1], OWNERS[2], "x"],
    &["ZADD", "redisson_lock_timeout:{b}", "4102444800000", OWNERS[1], "5", OWNERS[2]],
    &["RPUSH", "redisson_lock_queue:{t}x", OWNERS[0]],
    &["SET", "{rw}:1b671a64-40d5-491e-99b0-da01ff1f3341:1:rwlock_timeout:1", "1", "PX", "60000"],
    &["SET", "seats", "4"],
    &["ZADD", "{seats}:timeout", "4102444800000", "p", "922337203685477", "q", "5", "r"],
    &["HSET", "api", "rate", "5", "interval", "1000", "type", "0", "keepAliveTime", "0"],
    &["SET", "{api}:value", "3"],
    &["SET", "{string}:timeout", "no zset"],
];
/// What only `show` looks at, besides the others.
const SHOWN: [&str; 8] = ["a", "b", "{t}x", "string", "rw", "seats", "api", "permits"];
pub(super) const NAMES: [&str; 5] = ["a", "b", "{t}x", "string", "rw"];
/// Permits with leases, some under ids as old releases of Redisson write them.
const SEATS: [&str; 4] = ["seats", "seats", "free", "string"];
const IDS: [&str; 4] =
    ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc", "\u{1}\u{2}\0\r\n%%^$()[].*+"];
const LEASES: [&str; 4] = ["60000", "5000", "600000", "9007199254740991"];
const FORCED: &str = "redlatch_forced:{t}";
const RECORDS: [&str; 2] = ["redlatch:client:{a}", "redlatch:client:{b}"];
const CHANNEL: &str = "redisson_lock__channel:{x}";
/// Few, so that calls meet each other's holds; one is the name of a plain lock now and then.
pub(super) const RW_NAMES: [&str; 3] = ["rw", "r2", "a"];

/// One call: a script with keys and arguments that make sense, or nearly.
pub(super) fn call(dice: &mut Dice, n: usize) -> (&'static Script, Vec<String>, Vec<String>) {
    let script: &'static Script = scripts::ALL[dice.roll(scripts::ALL.len())];
    let name = dice.pick(&NAMES).to_owned();
    let token = format!("redisson_lock_token:{{{name}}}");
    let fair = vec![
        name.clone(),
        format!("redisson_lock_queue:{{{name}}}"),
        format!("redisson_lock_timeout:{{{name}}}"),
    ];
    let owner = dice.pick(&OWNERS).to_owned();
    let other = dice.pick(&OWNERS).to_owned();
    let lease = dice.pick(&LEASES).to_owned();
    let number = dice.roll(1000).to_string();
    let known = dice.pick(&["0", "1", "2", "3"]).to_owned();
    let fenced = dice.pick(&["0", "1"]).to_owned();
    let counter = dice.pick(&["permits", "count", "count", "string", "a"]).to_owned();
    let permits = dice.pick(&["1", "2", "5", "-3"]).to_owned();
    let seat = dice.pick(&SEATS);
    let seats = vec![seat.to_owned(), format!("{{{seat}}}:timeout")];
    let ids: String = (0..=dice.roll(2)).map(|_| dice.pick(&IDS)).collect();
    let texts = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
    let (keys, mut args) = match script.name() {
        "acquire" => (vec![name, token], vec![number, owner, lease, fenced]),
        "release" => (vec![name], expecting(dice, vec![number, owner, CHANNEL.into(), "publish".into()])),
        "acquire_all" => {
            // No key of two types at once, so that most calls are answered.
            let mut keys = vec![name];
            for _ in 0..dice.roll(4) {
                keys.push(dice.pick(&["a", "b", "{t}x", "c", "d", "rw"]).to_owned());
            }
            if fenced == "1" {
                let tokens: Vec<_> =
                    keys.iter().map(|key| format!("redisson_lock_token:{{{key}}}")).collect();
                keys.extend(tokens);
            }
            (keys, vec![number, owner, lease, fenced])
        }
        "release_all" => {
            let mut keys = vec![name];
            let mut args = vec![number, "publish".into()];
            for nth in 0..=dice.roll(4) {
                if nth > 0 {
                    keys.push(dice.pick(&["a", "b", "{t}x", "c", "d", "string"]).to_owned());
                }
                let (channel, expected) = (dice.pick(&["", CHANNEL]), dice.pick(&["", "", "1", "2"]));
                args.extend(texts(&[dice.pick(&OWNERS), channel, expected]));
            }
            (keys, args)
        }
        "enter" => (vec![name, token], vec![number, owner, lease, fenced]),
        "release_one" => (vec![name], vec![number, owner, CHANNEL.into(), "publish".into(), known, lease]),
        "renew" => {
            let mut keys = vec![name];
            let mut args = vec![number, dice.pick(&["60000", "0", "700000"]).to_owned(), owner];
            for _ in 0..dice.roll(3) {
                keys.push(dice.pick(&NAMES).to_owned());
                args.push(dice.pick(&OWNERS).to_owned());
            }
            own_leases(dice, &mut args, keys.len());
            (keys, args)
        }
        "shorten" => (vec![name], shortening(dice, number, owner)),
        "transfer" => {
            (vec![name, token], vec![number, owner, other, lease, fenced, dice.pick(&["0", "1"]).to_owned()])
        }
        "force" => {
            let expected = if dice.roll(2) == 0 { String::new() } else { owner };
            let (mut keys, mut args) = (vec![name], vec![number, expected, CHANNEL.into(), "publish".into()]);
            if dice.roll(2) == 0 {
                keys.push(FORCED.into());
                args.push("somebody\nwhy".into());
            }
            (keys, args)
        }
        "lost" => {
            let each = dice.pick(&["1", "2"]).to_owned();
            let keys = if each == "2" { vec![name, FORCED.into()] } else { vec![name, fair[0].clone()] };
            (keys, vec![number, each, dice.pick(&["0", "16"]).to_owned(), owner, other])
        }
        "show" => {
            let (shown, some) = (dice.pick(&SHOWN), dice.pick(&["0", "1", "100"]));
            // Of permits whose ends are a millisecond apart either may be the first one.
            let some = if shown == "seats" && some == "1" { "100" } else { some };
            (vec![shown.to_owned(), token], texts(&[some]))
        }
        "list" => (vec![], {
            let types = ["hash", "hash", "list", "zset", "string"];
            texts(&["0", dice.pick(&["*", "?", "{t}*", "[ab]", "none"]), "1000", "100", dice.pick(&types)])
        }),
        "query" => (vec![name], vec![owner]),
        "presence_set" => {
            let fields = &["host", "web-7", "hold:0", "lock 1200 1 a:1 x"][..dice.roll(3) * 2];
            let ttl = if fields.is_empty() { "0" } else { "60000" };
            (vec![dice.pick(&RECORDS).to_owned()], [texts(&[ttl]), texts(fields)].concat())
        }
        "presence_get" => (vec![dice.pick(&RECORDS).to_owned()], vec![]),
        "presence_list" => (vec![], texts(&["0", "redlatch:client:*", "1000"])),
        "sell" => (vec!["stock".to_owned()], texts(&[dice.pick(&["1", "5", "0"])])),
        "stock" => (vec!["stock".to_owned()], texts(&[dice.pick(&["", "15", "0", "none"])])),
        "fair_acquire" => {
            let wait = dice.pick(&["0", "30000", "30000"]).to_owned();
            let (channel, publish) = (CHANNEL.into(), "publish".into());
            let recount = dice.pick(&["0", "1"]).to_owned();
            let args = vec![number, owner, lease, fenced, wait, channel, publish, "300000".into(), recount];
            ([fair, vec![token]].concat(), args)
        }
        "fair_release" => {
            let heir = if dice.roll(3) == 0 { String::new() } else { other };
            let (channel, publish) = (CHANNEL.into(), "publish".into());
            let args = vec![number, owner, channel, publish, heir, lease, fenced];
            ([fair, vec![token]].concat(), expecting(dice, args))
        }
        "fair_release_one" => (fair, vec![number, owner, CHANNEL.into(), "publish".into(), known, lease]),
        "fair_undo" => (fair, expecting(dice, vec![number, owner, CHANNEL.into(), "publish".into()])),
        "fair_force" => {
            let expected = if dice.roll(2) == 0 { String::new() } else { owner };
            let args = vec![number, expected, CHANNEL.into(), "publish".into(), "somebody\n".into()];
            ([fair, vec![FORCED.into()]].concat(), args)
        }
        "counter_get" => (vec![counter], vec![number]),
        "counter_set" => (
            vec![counter],
            vec![
                number,
                permits,
                dice.pick(&["0", "60000"]).to_owned(),
                CHANNEL.into(),
                "publish".into(),
                "1".into(),
            ],
        ),
        "semaphore_take" => (vec![counter], vec![number, permits]),
        "semaphore_give" => (
            vec![counter],
            vec![number, permits, CHANNEL.into(), "publish".into(), dice.pick(&["0", "1"]).to_owned()],
        ),
        "semaphore_drain" => (vec![counter], vec![number]),
        "latch_down" | "latch_delete" | "semaphore_delete" => {
            (vec![counter], vec![number, CHANNEL.into(), "publish".into()])
        }
        "rate_take" => {
            (rate_keys(dice), vec![number, dice.pick(&["1", "2", "5", "7"]).to_owned(), grant_id(n)])
        }
        "rate_release" => {
            let id =
                if dice.roll(2) == 0 { String::new() } else { grant_id(n.saturating_sub(dice.roll(20))) };
            (rate_keys(dice), vec![number, dice.pick(&["1", "2", "5", "50"]).to_owned(), id])
        }
        "rate_set" => (
            rate_keys(dice),
            vec![
                number,
                dice.pick(&["5", "9", "200"]).to_owned(),
                dice.pick(&["60000", "600000"]).to_owned(),
                dice.pick(&["0", "0", "1"]).to_owned(),
                dice.pick(&["0", "0", "900000"]).to_owned(),
                dice.pick(&["absent", "always", "present", "present"]).to_owned(),
            ],
        ),
        "rate_show" | "rate_delete" => (rate_keys(dice), vec![number]),
        "permit_take" => (seats, vec![number, ids, lease, CHANNEL.into(), "publish".into()]),
        "permit_give" => {
            let all = dice.pick(&["0", "1"]).to_owned();
            let (given, not) = if dice.roll(2) == 0 { ("1", "0") } else { ("0", "-1") };
            (seats, vec![number, ids, CHANNEL.into(), "publish".into(), all, given.into(), not.into()])
        }
        "permit_renew" => {
            let mut keys = vec![seats[1].clone()];
            let mut args = vec![number, dice.pick(&["60000", "0"]).to_owned(), ids];
            for _ in 0..dice.roll(3) {
                keys.push(format!("{{{}}}:timeout", dice.pick(&SEATS)));
                args.push(dice.pick(&IDS).to_owned());
            }
            (keys, args)
        }
        "permit_look" => {
            let id = dice.pick(&["", "aaaaaaaaaaaaaaaa", "cccccccccccccccc"]).to_owned();
            (seats, vec![number, id, CHANNEL.into(), "publish".into()])
        }
        "permit_set" => {
            let how = dice.pick(&["absent", "total", "add"]).to_owned();
            (seats, vec![number, permits, CHANNEL.into(), "publish".into(), how])
        }
        "permit_end" => {
            let ttl = dice.pick(&["0", "60000", "60000"]).to_owned();
            (seats, vec![number, ttl, CHANNEL.into(), "publish".into()])
        }
        script => {
            read_write(dice, script, number, owner, other, [lease, known, fenced]).unwrap_or_else(|| {
                panic!("the differential test has no arguments for {script}.lua");
            })
        }
    };
    // Now and then an argument is nonsense: both sides must refuse alike.
    if dice.roll(40) == 0 && !args.is_empty() {
        // A cursor is opaque, and servers differ in which nonsense they take for one.
        let first = usize::from(script.name() == "list");
        // The ids of grants decide the order of those of one millisecond, which must be the same on both sides.
        let last = if matches!(script.name(), "rate_take" | "rate_release") { 2 } else { args.len() };
        let at = first + dice.roll(last - first);
        args[at] = dice.pick(&["", "x", "-1", "1.5", "99999999999999999999"]).to_owned();
        // What ends within a few milliseconds would have ended on one side and not yet on the other: permits that last for 1.5 ms.
        if script.name().starts_with("permit_") && args[at] == "1.5" {
            args[at] = "x".to_owned();
        }
    }
    (script, keys, args)
}

/// Some are meant for a hold whose end has come, some for one that lasts, and some ask for the end.
fn shortening(dice: &mut Dice, number: String, owner: String) -> Vec<String> {
    let mut args = vec![number, owner, dice.pick(&["60000", "500000", "700000"]).to_owned()];
    match dice.pick(&["", "0", "1700000000000", "9000000000000"]) {
        "" => {}
        end => args.push(end.to_owned()),
    }
    args
}

/// Now and then each hold has a lease of its own.
fn own_leases(dice: &mut Dice, args: &mut Vec<String>, holds: usize) {
    if dice.roll(3) == 0 {
        args.extend((0..holds).map(|_| dice.pick(&["60000", "500000", "700000"]).to_owned()));
    }
}

/// Now and then a release expects a count.
fn expecting(dice: &mut Dice, mut args: Vec<String>) -> Vec<String> {
    match dice.pick(&["", "1", "2"]) {
        "" => {}
        count => args.push(count.to_owned()),
    }
    args
}

/// The keys of a rate limiter, mostly of one that is there.
fn rate_keys(dice: &mut Dice) -> Vec<String> {
    let name = *["rate", "rate", "rate", "rate", "rate", "rate", "string", "a"].get(dice.roll(8)).unwrap();
    let part = |part: &str| if name == "a" { part.to_owned() } else { format!("{{{name}}}:{part}") };
    vec![name.to_owned(), part("value"), part("value:me"), part("permits"), part("permits:me")]
}

/// Grows with the calls, as the time of the grants does.
fn grant_id(n: usize) -> String {
    format!("{n:016}")
}

/// The arguments of the scripts of the read-write lock.
fn read_write(
    dice: &mut Dice,
    script: &str,
    number: String,
    owner: String,
    other: String,
    [lease, known, fenced]: [String; 3],
) -> Option<(Vec<String>, Vec<String>)> {
    let name = dice.pick(&RW_NAMES).to_owned();
    let base = format!("{{{name}}}:");
    let token = format!("redisson_lock_token:{{{name}}}");
    let (channel, publish) = ("redisson_rwlock:{x}".to_owned(), "publish".to_owned());
    let side = dice.pick(&["read", "write"]).to_owned();
    let keys = vec![name.clone(), base.clone()];
    Some(match script {
        "read_acquire" | "write_acquire" => (vec![name, base, token], vec![number, owner, lease, fenced]),
        "read_enter" => (vec![name, base, token], vec![number, owner, lease, fenced]),
        "write_enter" => (vec![name, token], vec![number, owner, lease, fenced]),
        "read_transfer" => (
            vec![name, base, token],
            vec![number, other, lease, owner, fenced, dice.pick(&["1", "2"]).to_owned()],
        ),
        "read_shorten" | "write_shorten" => (keys, shortening(dice, number, owner)),
        "read_release" | "write_release" => (keys, expecting(dice, vec![number, owner, channel, publish])),
        "read_release_one" | "write_release_one" => {
            (keys, vec![number, owner, channel, publish, known, lease])
        }
        "read_renew" | "write_renew" => {
            let (mut keys, mut args) =
                (Vec::new(), vec![number, dice.pick(&["60000", "0", "700000"]).to_owned()]);
            for _ in 0..=dice.roll(3) {
                let name = dice.pick(&RW_NAMES);
                keys.push(name.to_owned());
                if script == "read_renew" {
                    keys.push(format!("{{{name}}}:"));
                }
                args.push(dice.pick(&OWNERS).to_owned());
            }
            let holds = if script == "read_renew" { keys.len() / 2 } else { keys.len() };
            own_leases(dice, &mut args, holds);
            (keys, args)
        }
        "write_transfer" => {
            let moves = dice.pick(&["0", "1", "2"]).to_owned();
            (vec![name, base, token], vec![number, owner, other, lease, fenced, moves])
        }
        "rw_force" => {
            let expected = ["", &owner, &format!("{owner}:write")][dice.roll(3)].to_owned();
            let args = vec![number, expected, side, channel, publish, "1".to_owned(), "somebody\nwhy".into()];
            (vec![name, base, FORCED.into()], args)
        }
        "rw_query" => (keys, vec![owner, side]),
        _ => return None,
    })
}
