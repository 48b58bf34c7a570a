//! The pages, as HTML. Whatever came from the server goes through `escape`, so that no name reverses a line or hides a character, and
//! through the templates, which escape what HTML gives a meaning.

use std::time::Duration;

use maud::{DOCTYPE, Markup, html};
use redlatch::{ClientRecord, LockName, Severity};

use super::{
    access::Token,
    doctor::Diagnosis,
    looks::{Known, Look},
};
use crate::{
    checks::Check,
    durations::human,
    escape,
    output::Record,
    snapshot::{
        alarms::Alarm,
        blocking,
        detail::Detail,
        lock_row::LockRow,
        order::{self, Sort},
    },
    who,
};

/// The pages that the navigation leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    Locks,
    Blocking,
    Clients,
    Alarms,
    Doctor,
}

impl Page {
    const ALL: [Page; 5] = [Page::Locks, Page::Blocking, Page::Clients, Page::Alarms, Page::Doctor];

    fn path(self) -> &'static str {
        match self {
            Page::Locks => "/",
            Page::Blocking => "/blocking",
            Page::Clients => "/clients",
            Page::Alarms => "/alarms",
            Page::Doctor => "/doctor",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Page::Locks => "Locks",
            Page::Blocking => "Blocking",
            Page::Clients => "Clients",
            Page::Alarms => "Alarms",
            Page::Doctor => "Doctor",
        }
    }
}

/// How the names are filtered and sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) filter: String,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
}

/// What all pages need.
pub(super) struct Frame<'a> {
    /// Where the locks are. Safe to print.
    pub(super) place: &'a str,
    pub(super) known: &'a Known,
    /// Whether a page may take a name from its holder.
    pub(super) may_force: bool,
}

fn safe(text: &str) -> String {
    escape::text(text).to_string()
}

fn time(ms: Option<u64>) -> String {
    ms.map_or_else(|| "–".into(), |ms| human(Duration::from_millis(ms)))
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "–".into() } else { safe(text) }
}

/// A name as the address of its page has it, whatever its bytes are.
pub(super) fn hex(name: &LockName) -> String {
    name.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a name in an address.
pub(super) fn of_hex(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        hex.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2) && !digits.is_empty())?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn name_link(name: &LockName) -> Markup {
    html! { a.name href={ "/lock?hex=" (hex(name)) } { (escape::bytes(name.as_bytes()).to_string()) } }
}

impl Frame<'_> {
    /// A whole page.
    fn page(&self, current: Option<Page>, title: &str, body: &Markup) -> Markup {
        self.whole(current, title, body, true)
    }

    /// One that is not live stays as it is while a person types.
    fn whole(&self, current: Option<Page>, title: &str, body: &Markup, is_live: bool) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (title) " – redlatch" }
                    link rel="stylesheet" href="/style.css";
                    @if is_live { script src="/live.js" defer {} }
                }
                body {
                    header {
                        nav aria-label="Pages" {
                            ul {
                                @for page in Page::ALL {
                                    li { a href=(page.path()) aria-current=[(current == Some(page)).then_some("page")] { (page.title()) } }
                                }
                            }
                        }
                        p.place { (self.place) }
                    }
                    main { (self.state()) h1 { (title) } (body) }
                }
            }
        }
    }

    /// What has to be seen on every page: that the server is not there, how old this is, and problems.
    fn state(&self) -> Markup {
        let problems = self.known.look.iter().flat_map(|look| &look.alarms);
        let problems = problems.filter(|alarm| alarm.severity == Severity::Problem).count();
        html! {
            @if let Some(trouble) = &self.known.trouble {
                p.problem role="status" {
                    (trouble)
                    @if self.known.look.is_some() { ". This is what was seen " (human(self.known.age())) " ago." }
                }
            }
            @if problems > 0 {
                p.problem { a href="/alarms" { (problems) " " (if problems == 1 { "problem" } else { "problems" }) } }
            }
        }
    }

    /// A page of what a look found.
    fn of_look(&self, page: Page, body: impl Fn(&Look) -> Markup) -> Markup {
        let body = self.known.look.as_ref().map(|look| body(look));
        self.page(
            Some(page),
            page.title(),
            &body.unwrap_or_else(|| html! { p { "The server was not seen yet." } }),
        )
    }

    pub(super) fn locks(&self, choice: &Choice) -> Markup {
        self.of_look(Page::Locks, |look| {
            let rows = order::shown(&look.snapshot.rows, &choice.filter, choice.sort, choice.is_reversed);
            html! {
                (choice_form(choice))
                p.quiet {
                    (rows.len()) " of " (look.snapshot.rows.len()) " names"
                    @if look.snapshot.is_cut { "; there are more than were looked at" }
                }
                @if !rows.is_empty() { (lock_table(&rows)) }
            }
        })
    }

    pub(super) fn blocking(&self) -> Markup {
        self.of_look(Page::Blocking, |look| {
            let lines = blocking::lines(&look.snapshot.why);
            html! {
                p.quiet { "At the root who holds all of them up; below it those who wait, and what they hold up in turn." }
                @if lines.is_empty() { p { "Nobody waits." } }
                ul.tree {
                    @for line in &lines {
                        li class=[line.is_cycle.then_some("problem")] {
                            span aria-hidden="true" { ("\u{a0}".repeat(4 * line.depth)) }
                            @match &line.name {
                                Some(name) => a href={ "/lock?hex=" (hex(name)) } { (line.text) },
                                None => (line.text),
                            }
                        }
                    }
                }
            }
        })
    }

    pub(super) fn clients(&self) -> Markup {
        self.of_look(Page::Clients, |look| {
            let clients = &look.snapshot.clients;
            html! {
                p.quiet { "Clients that have held or waited for longer than a second, as they tell." }
                @if clients.is_empty() { p { "None." } } @else { (client_table(clients)) }
            }
        })
    }

    pub(super) fn alarms(&self) -> Markup {
        self.of_look(Page::Alarms, |look| {
            html! {
                @if look.alarms.is_empty() { p { "Nothing is wrong." } }
                @for alarm in &look.alarms { (alarm_line(alarm)) }
            }
        })
    }

    /// What the settings of the server mean for locks. It is not live: each look makes connections.
    pub(super) fn doctor(&self, diagnosis: &Diagnosis) -> Markup {
        let body = html! {
            p.quiet { "What the settings of the server mean for locks, as far as a look shows it that writes no key. From the shell `redlatch doctor` tries a lock and a wake-up as well." }
            @match diagnosis {
                Ok(checks) => (check_table(checks)),
                Err(trouble) => p.problem role="status" { (trouble) },
            }
        };
        self.whole(Some(Page::Doctor), Page::Doctor.title(), &body, false)
    }

    /// The page of one name.
    pub(super) fn lock(&self, name: &LockName) -> Markup {
        let quoted = escape::quoted(name);
        let look = self.known.look.as_deref();
        let row = look.and_then(|look| look.snapshot.rows.iter().find(|row| row.key == *name));
        let blocked =
            look.and_then(|look| look.snapshot.why.names.iter().find(|blocked| blocked.state.name == *name));
        let alarms =
            look.iter().flat_map(|look| &look.alarms).filter(|alarm| alarm.name.as_ref() == Some(name));
        let word = escape::shell_word(name).unwrap_or_else(|| "NAME".into());
        let body = html! {
            @for alarm in alarms { (alarm_line(alarm)) }
            @match row {
                None => p { "It is free now, or was not looked at." },
                Some(row) => {
                    (detail(row))
                    @if self.may_force {
                        ul {
                            @for (owner, _) in row.takeable() {
                                li { a href={ "/force?hex=" (hex(name)) "&owner=" (percent(&owner)) } { "Take it from " (safe(&owner)) "…" } }
                            }
                        }
                    }
                }
            }
            @if let Some(waiting) = blocked.map(|blocked| &blocked.waiting).filter(|waiting| !waiting.is_empty()) {
                h2 { "Who waits, as their clients tell" }
                ul { @for waits in waiting { li { (who::with_reason(&waits.client)) " since " (human(waits.told.lasts)) } } }
            }
            h2 { "From the shell" }
            pre tabindex="0" aria-label="Commands" { "redlatch show " (word) "\nredlatch why " (word) "\nredlatch force-unlock " (word) " --owner ID --reason TEXT" }
        };
        self.page(None, &quoted, &body)
    }
}

impl Frame<'_> {
    /// Asks who takes a name from a holder, why, and whether that is meant.
    pub(super) fn force(&self, name: &LockName, owner: &str, form: &Token) -> Markup {
        let row = self.known.look.as_deref();
        let row = row.and_then(|look| look.snapshot.rows.iter().find(|row| row.key == *name));
        let holders = row.map(LockRow::takeable).unwrap_or_default();
        let told = holders.iter().find(|(held, _)| held == owner).map(|(_, told)| told.as_str());
        let title = format!("Take {} from its holder", escape::quoted(name));
        let body = html! {
            p {
                (safe(owner))
                @match told {
                    Some("") => " holds it.",
                    Some(told) => { " holds it: " (safe(told)) },
                    None => " did not hold it when it was looked at last.",
                }
                " The holder is told at once, with what you write here, but may still be at work: a process that hangs may go on later."
            }
            form.force method="post" action="/force" {
                input type="hidden" name="form" value=(form.reveal());
                input type="hidden" name="hex" value=(hex(name));
                input type="hidden" name="owner" value=(owner);
                label { "Who you are " input name="by" required maxlength="200" autocomplete="username"; }
                label { "Why " input name="reason" required maxlength="500" size="40"; }
                label { input type="checkbox" name="meant" value="yes" required; " I mean it" }
                button type="submit" { "Take it" }
            }
            p { (name_link(name)) }
        };
        self.whole(None, &title, &body, false)
    }

    /// What became of it.
    pub(super) fn forced(&self, name: &LockName, told: &str) -> Markup {
        let body = html! { p role="status" { (told) } p { (name_link(name)) } };
        self.whole(None, &escape::quoted(name), &body, false)
    }
}

/// A text as a part of an address.
fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn choice_form(choice: &Choice) -> Markup {
    html! {
        form method="get" action="/" role="search" {
            label { "Contains " input type="search" name="q" value=(choice.filter) maxlength="200"; }
            label {
                "Sort by "
                select name="sort" {
                    @for sort in Sort::ALL {
                        option value=(sort.word()) selected[sort == choice.sort] { (sort.word()) }
                    }
                }
            }
            label { input type="checkbox" name="reversed" value="1" checked[choice.is_reversed]; " reversed" }
            button type="submit" { "Show" }
        }
    }
}

fn lock_table(rows: &[&LockRow]) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label="Locks" {
            table {
                thead {
                    tr { @for title in ["Name", "Kind", "TTL", "Held for", "Waiters", "Held by", "Value"] { th scope="col" { (title) } } }
                }
                tbody {
                    @for row in rows {
                        @let who = row.who();
                        tr {
                            td class=[row.has_findings().then_some("problem")] { (name_link(&row.key)) }
                            td { (row.kind()) }
                            td.number { (or_dash(&row.ttl())) }
                            td.number { (time(row.held_ms())) }
                            td.number { (or_dash(&row.waiters())) }
                            td { (or_dash(if who.is_empty() { row.owners() } else { who }.as_str())) }
                            td.number { (or_dash(&row.value())) }
                        }
                    }
                }
            }
        }
    }
}

fn client_table(clients: &[ClientRecord]) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label="Clients" {
            table {
                thead {
                    tr { @for title in ["Client", "Lives", "Holds", "Waits for", "Why"] { th scope="col" { (title) } } }
                }
                tbody {
                    @for client in clients {
                        tr {
                            td { (who::named(client)) @if client.is_over { " (ended)" } }
                            td.number { (human(client.lives)) }
                            td { @for hold in &client.holds { (name_link(&hold.name)) " " } }
                            td { @for wait in &client.waits { (name_link(&wait.name)) " since " (human(wait.lasts)) " " } }
                            td { (or_dash(client.why.as_deref().unwrap_or_default())) }
                        }
                    }
                }
            }
        }
    }
}

fn check_table(checks: &[Check]) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label="Checks" {
            table {
                thead {
                    tr { @for title in Check::COLUMNS { th scope="col" { (title[..1]) (title[1..].to_lowercase()) } } }
                }
                tbody {
                    @for check in checks {
                        tr {
                            td class=[match check.result { "good" => None, result => Some(result) }] { (check.result) }
                            td { (check.check) }
                            td { (safe(&check.detail)) }
                            td { (or_dash(check.remedy.unwrap_or_default())) }
                        }
                    }
                }
            }
        }
    }
}

fn alarm_line(alarm: &Alarm) -> Markup {
    let is_problem = alarm.severity == Severity::Problem;
    html! {
        p class=(if is_problem { "problem" } else { "note" }) {
            (if is_problem { "Problem: " } else { "Note: " })
            @match &alarm.name {
                Some(name) => a href={ "/lock?hex=" (hex(name)) } { (alarm.to_string()) },
                None => (alarm.to_string()),
            }
            @if let Some(remedy) = alarm.remedy { br; span.quiet { (remedy) } }
        }
    }
}

fn detail(row: &LockRow) -> Markup {
    let cells = Detail(row.clone()).cells();
    html! {
        dl {
            @for (title, cell) in Detail::COLUMNS.iter().zip(cells).filter(|(_, cell)| !cell.is_empty()) {
                dt { (title.to_lowercase()) }
                dd { (safe(&cell)) }
            }
        }
    }
}
