//! Sorted sets.

use std::cmp::Ordering;
use std::sync::Arc;

use super::keys::count;
use super::list::span;
use super::{Core, Reply};
use crate::effect::Effect;
use crate::fast_hash::FastMap;
use crate::number::{format_float, parse_float, parse_int};
use crate::value::{EngineError, NOT_FLOAT, NOT_INTEGER, SYNTAX, Value};

const BAD_RANGE: EngineError = EngineError::fixed("ERR min or max is not a float");

/// Members in the order of (score, member). A sorted array beats a tree here: queues and windows grow at the end
/// and shrink at the front, and ranks come for nothing.
#[derive(Default)]
pub(crate) struct SortedSet {
    order: Vec<(f64, Arc<[u8]>)>,
    scores: FastMap<Arc<[u8]>, f64>,
}

fn compare(a: (f64, &[u8]), b: (f64, &[u8])) -> Ordering {
    // Scores are never NaN: every command refuses it.
    a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal).then_with(|| a.1.cmp(b.1))
}

impl SortedSet {
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    fn search(&self, score: f64, member: &[u8]) -> Result<usize, usize> {
        self.order.binary_search_by(|(s, m)| compare((*s, m), (score, member)))
    }

    pub(crate) fn rank(&self, member: &[u8]) -> Option<usize> {
        self.search(self.score(member)?, member).ok()
    }

    pub(crate) fn insert(&mut self, member: &[u8], score: f64) {
        let name = match self.scores.get_key_value(member) {
            Some((name, &old)) => {
                let name = Arc::clone(name);
                if let Ok(at) = self.search(old, member) {
                    self.order.remove(at);
                }
                name
            }
            None => member.into(),
        };
        let at = self.search(score, member).unwrap_or_else(|at| at);
        self.order.insert(at, (score, Arc::clone(&name)));
        self.scores.insert(name, score);
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else { return false };
        if let Ok(at) = self.search(score, member) {
            self.order.remove(at);
        }
        true
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], f64)> {
        self.order.iter().map(|(score, member)| (&**member, *score))
    }

    fn between(&self, range: &ScoreRange) -> std::ops::Range<usize> {
        let start = self.order.partition_point(|(score, _)| range.is_below(*score));
        let end = self.order.partition_point(|(score, _)| !range.is_above(*score));
        start..end.max(start)
    }
}

/// A range of scores, each end open or closed.
struct ScoreRange {
    min: f64,
    min_open: bool,
    max: f64,
    max_open: bool,
}

impl ScoreRange {
    fn parse(min: &[u8], max: &[u8]) -> Result<ScoreRange, EngineError> {
        // Redis reads a bound without digits as zero.
        let number = |text: &[u8]| if text.is_empty() { Some(0.0) } else { parse_float(text) };
        let end = |text: &[u8]| match text {
            [b'(', rest @ ..] => number(rest).map(|score| (score, true)),
            _ => number(text).map(|score| (score, false)),
        };
        let (min, min_open) = end(min).ok_or(BAD_RANGE)?;
        let (max, max_open) = end(max).ok_or(BAD_RANGE)?;
        Ok(ScoreRange { min, min_open, max, max_open })
    }

    fn is_below(&self, score: f64) -> bool {
        if self.min_open { score <= self.min } else { score < self.min }
    }

    fn is_above(&self, score: f64) -> bool {
        if self.max_open { score >= self.max } else { score > self.max }
    }
}

fn score_reply(score: f64) -> Value {
    Value::bytes(format_float(score).as_bytes())
}

pub(crate) fn zadd(core: &mut Core, args: &[&[u8]]) -> Reply {
    let (mut nx, mut xx, mut gt, mut lt, mut ch) = (false, false, false, false, false);
    let mut at = 2;
    while let Some(option) = args.get(at) {
        match option.to_ascii_lowercase().as_slice() {
            b"nx" => nx = true,
            b"xx" => xx = true,
            b"gt" => gt = true,
            b"lt" => lt = true,
            b"ch" => ch = true,
            _ => break,
        }
        at += 1;
    }
    let pairs = &args[at..];
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(SYNTAX);
    }
    if nx && xx {
        return Err(EngineError::fixed("ERR XX and NX options at the same time are not compatible"));
    }
    if (gt && lt) || (nx && (gt || lt)) {
        return Err(EngineError::fixed("ERR GT, LT, and/or NX options at the same time are not compatible"));
    }
    let mut scores = Vec::with_capacity(pairs.len() / 2);
    for pair in pairs.chunks_exact(2) {
        scores.push((parse_float(pair[0]).ok_or(NOT_FLOAT)?, pair[1]));
    }
    if xx && core.sorted(args[1])?.is_none() {
        return Ok(Value::Int(0));
    }
    let set = core.sorted_or_new(args[1])?;
    let (mut added, mut changed) = (0, 0);
    let mut written = Vec::new();
    for (score, member) in scores {
        match set.score(member) {
            None if xx => continue,
            None => added += 1,
            Some(old) => {
                if nx || old == score || (gt && score <= old) || (lt && score >= old) {
                    continue;
                }
                changed += 1;
            }
        }
        set.insert(member, score);
        written.push((member, score));
    }
    for (member, score) in written {
        emit_set(core, args[1], member, score);
    }
    core.remove_if_empty(args[1]);
    Ok(Value::Int(if ch { added + changed } else { added }))
}

fn emit_set(core: &mut Core, key: &[u8], member: &[u8], score: f64) {
    core.emit(|| Effect::SortedSet { key: key.to_vec(), member: member.to_vec(), score });
}

pub(crate) fn zincrby(core: &mut Core, args: &[&[u8]]) -> Reply {
    let by = parse_float(args[2]).ok_or(NOT_FLOAT)?;
    let old = core.sorted(args[1])?.and_then(|set| set.score(args[3])).unwrap_or(0.0);
    let new = old + by;
    if new.is_nan() {
        return Err(EngineError::fixed("ERR resulting score is not a number (NaN)"));
    }
    core.sorted_or_new(args[1])?.insert(args[3], new);
    emit_set(core, args[1], args[3], new);
    Ok(score_reply(new))
}

pub(crate) fn zrem(core: &mut Core, args: &[&[u8]]) -> Reply {
    let Some(set) = core.sorted(args[1])? else { return Ok(Value::Int(0)) };
    let removed: Vec<&[u8]> = args[2..].iter().copied().filter(|member| set.remove(member)).collect();
    for member in &removed {
        core.emit(|| Effect::SortedRemove { key: args[1].to_vec(), member: member.to_vec() });
    }
    if !removed.is_empty() {
        core.lessened(args[1]);
    }
    core.remove_if_empty(args[1]);
    Ok(Value::Int(count(removed.len())))
}

pub(crate) fn zremrangebyscore(core: &mut Core, args: &[&[u8]]) -> Reply {
    let range = ScoreRange::parse(args[2], args[3])?;
    let Some(set) = core.sorted(args[1])? else { return Ok(Value::Int(0)) };
    let positions = set.between(&range);
    let removed: Vec<(f64, Arc<[u8]>)> = set.order.drain(positions).collect();
    for (_, member) in &removed {
        set.scores.remove(member);
    }
    for (_, member) in &removed {
        core.emit(|| Effect::SortedRemove { key: args[1].to_vec(), member: member.to_vec() });
    }
    if !removed.is_empty() {
        core.lessened(args[1]);
    }
    core.remove_if_empty(args[1]);
    Ok(Value::Int(count(removed.len())))
}

pub(crate) fn zscore(core: &mut Core, args: &[&[u8]]) -> Reply {
    Ok(core.sorted(args[1])?.and_then(|set| set.score(args[2])).map_or(Value::Nil, score_reply))
}

pub(crate) fn zcard(core: &mut Core, args: &[&[u8]]) -> Reply {
    Ok(Value::Int(core.sorted(args[1])?.map_or(0, |set| count(set.len()))))
}

pub(crate) fn zrank(core: &mut Core, args: &[&[u8]]) -> Reply {
    let rank = core.sorted(args[1])?.and_then(|set| set.rank(args[2]));
    Ok(rank.map_or(Value::Nil, |rank| Value::Int(count(rank))))
}

pub(crate) fn zcount(core: &mut Core, args: &[&[u8]]) -> Reply {
    let range = ScoreRange::parse(args[2], args[3])?;
    Ok(Value::Int(core.sorted(args[1])?.map_or(0, |set| count(set.between(&range).len()))))
}

pub(crate) fn zrange(core: &mut Core, args: &[&[u8]]) -> Reply {
    range(core, args, false)
}

pub(crate) fn zrangebyscore(core: &mut Core, args: &[&[u8]]) -> Reply {
    range(core, args, true)
}

fn range(core: &mut Core, args: &[&[u8]], fixed_by_score: bool) -> Reply {
    let (mut by_score, mut reverse, mut with_scores) = (fixed_by_score, false, false);
    let mut limit: Option<(i64, i64)> = None;
    let mut rest = args[4..].iter();
    while let Some(option) = rest.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"withscores" => with_scores = true,
            b"byscore" if !by_score => by_score = true,
            b"rev" if !fixed_by_score && !reverse => reverse = true,
            b"limit" => {
                let (Some(offset), Some(amount)) = (rest.next(), rest.next()) else { return Err(SYNTAX) };
                limit = Some((parse_int(offset).ok_or(NOT_INTEGER)?, parse_int(amount).ok_or(NOT_INTEGER)?));
            }
            _ => return Err(SYNTAX),
        }
    }
    if limit.is_some() && !by_score {
        return Err(EngineError::fixed(
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
        ));
    }
    let mut out = Vec::new();
    let mut add = |(score, member): &(f64, Arc<[u8]>)| {
        out.push(Value::bytes(member));
        if with_scores {
            out.push(score_reply(*score));
        }
    };
    if by_score {
        let (low, high) = if reverse { (args[3], args[2]) } else { (args[2], args[3]) };
        let scores = ScoreRange::parse(low, high)?;
        if let Some(set) = core.sorted(args[1])? {
            let members = &set.order[set.between(&scores)];
            let (offset, amount) = limit.unwrap_or((0, -1));
            // A negative offset selects nothing, a negative amount means all.
            let skip = usize::try_from(offset).unwrap_or(usize::MAX);
            let take = usize::try_from(amount).unwrap_or(usize::MAX);
            if reverse {
                members.iter().rev().skip(skip).take(take).for_each(&mut add);
            } else {
                members.iter().skip(skip).take(take).for_each(&mut add);
            }
        }
    } else {
        let start = parse_int(args[2]).ok_or(NOT_INTEGER)?;
        let stop = parse_int(args[3]).ok_or(NOT_INTEGER)?;
        if let Some(set) = core.sorted(args[1])? {
            let positions = span(start, stop, set.len());
            if reverse {
                set.order.iter().rev().skip(positions.start).take(positions.len()).for_each(&mut add);
            } else {
                set.order[positions].iter().for_each(&mut add);
            }
        }
    }
    Ok(Value::Array(out))
}
