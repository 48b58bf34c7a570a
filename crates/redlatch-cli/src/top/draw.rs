//! How it looks: everything is drawn from what [`App`] knows.

use std::time::Duration;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState},
};
use redlatch::{ClientRecord, LockName, Severity};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{
    app::{App, View},
    force::{Asks, Force, YES},
};
use crate::{
    durations::human,
    escape,
    output::Record,
    snapshot::{alarms::Alarm, blocking, detail::Detail, lock_row::LockRow},
    who,
};

const KEYS: &[(&str, &str)] = &[
    ("1, 2, 3, 4, Tab", "locks, trees of waits, clients, what is wrong"),
    ("↑ ↓ PgUp PgDn", "move (also k, j, g, G)"),
    ("Enter", "everything about the selected name"),
    ("/", "show only what contains a text; Esc shows all again"),
    ("s, r", "sort by the next column; the other way round"),
    ("f", "take the selected name from its holder, after two questions"),
    ("Space", "look at the server now"),
    ("q, Ctrl-C", "quit"),
];

/// How many problems are shown above every page.
const PROBLEMS_MAX: usize = 3;

/// Colours, or none of them (`NO_COLOR`): then only bold, dim and reversed text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Palette {
    pub(super) is_colored: bool,
}

impl Palette {
    fn colored(self, color: Color, otherwise: Modifier) -> Style {
        if self.is_colored { Style::new().fg(color) } else { Style::new().add_modifier(otherwise) }
    }

    fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn alarm(self) -> Style {
        self.colored(Color::Red, Modifier::BOLD).add_modifier(Modifier::BOLD)
    }

    fn notice(self) -> Style {
        self.colored(Color::Yellow, Modifier::empty())
    }

    fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// Draws everything. The last look that succeeded is so old.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App, age: Option<Duration>, palette: Palette) {
    let alarms = alarms(app);
    let alarm_lines = u16::try_from(alarms.len()).unwrap_or(u16::MAX);
    let [head, above, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(alarm_lines),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(header(app, age, palette)), head);
    let alarms: Vec<Line<'_>> = alarms.into_iter().map(|text| Line::styled(text, palette.alarm())).collect();
    frame.render_widget(Paragraph::new(alarms), above);
    match &app.view {
        View::Locks => locks(frame, app, body, palette),
        View::Blocking => blocking(frame, app, body, palette),
        View::Clients => clients(frame, app, body, palette),
        View::Alarms => alarm_page(frame, app, body, palette),
        View::Detail(name) => detail(frame, app, name, body, palette),
        View::Help => help(frame, body, palette),
    }
    frame.render_widget(Paragraph::new(footer(app, palette)), foot);
    if let Some(force) = &app.force {
        question(frame, force, palette);
    }
}

/// What has to be seen wherever one looks: that the server is not there, and problems.
fn alarms(app: &App) -> Vec<String> {
    let mut lines: Vec<String> = app.trouble.iter().cloned().collect();
    // The page of alarms has all of them.
    if app.view != View::Alarms {
        let mut problems = app.alarms.iter().filter(|alarm| alarm.severity == Severity::Problem);
        lines.extend(problems.by_ref().take(PROBLEMS_MAX).map(Alarm::to_string));
        let more = problems.count();
        if more > 0 {
            lines.push(format!("and {more} more problems (4)"));
        }
    }
    lines
}

fn header(app: &App, age: Option<Duration>, palette: Palette) -> Line<'static> {
    let mut parts = vec![Span::styled("redlatch", palette.title()), Span::raw(format!("  {}", app.place))];
    match &app.snapshot {
        None => parts.push(Span::styled("  looking…", palette.quiet())),
        Some(snapshot) => {
            let awaited = snapshot.rows.iter().filter(|row| row.waiting() > 0).count();
            let more = if snapshot.is_cut { " and more" } else { "" };
            let count = snapshot.rows.len();
            let names = if count == 1 { "name" } else { "names" };
            parts.push(Span::raw(format!("  {count} {names}{more}, {awaited} waited for")));
        }
    }
    let is_problem = |alarm: &&Alarm| alarm.severity == Severity::Problem;
    let problems = app.alarms.iter().filter(is_problem).count();
    for (count, word, style) in
        [(problems, "problem", palette.alarm()), (app.alarms.len() - problems, "note", palette.notice())]
    {
        let several = if count == 1 { "" } else { "s" };
        if count > 0 {
            parts.push(Span::styled(format!("  {count} {word}{several}"), style));
        }
    }
    // What is shown is as old as the last look that succeeded.
    if let Some(age) = age.filter(|_| app.trouble.is_some()) {
        parts.push(Span::styled(format!("  as of {} ago", human(age)), palette.notice()));
    }
    Line::from(parts)
}

fn footer(app: &App, palette: Palette) -> Line<'static> {
    if app.types_filter {
        return Line::from(format!("/{}_", escape::text(&app.filter)));
    }
    if let Some(message) = &app.message {
        return Line::styled(message.clone(), palette.notice());
    }
    let filter = match &*app.filter {
        "" => String::new(),
        filter => format!("only \"{}\" (Esc: all)  ", escape::text(filter)),
    };
    let keys = match app.view {
        View::Locks => {
            let order = if app.is_reversed { ", reversed" } else { "" };
            format!(
                "Tab pages  Enter detail  / filter  s by {}{order}  f force  ? keys  q quit",
                app.sort.word()
            )
        }
        View::Help => "Esc back  q quit".into(),
        _ => "Tab pages  Esc back  Enter detail  f force  ? keys  q quit".into(),
    };
    Line::styled(filter + &keys, palette.quiet())
}

/// Text of any origin as a cell; a dash for nothing.
fn cell(text: &str) -> Cell<'static> {
    Cell::new(if text.is_empty() { "-".into() } else { escape::text(text).to_string() })
}

fn time(ms: Option<u64>) -> String {
    ms.map(|ms| human(Duration::from_secs(ms / 1000))).unwrap_or_default()
}

fn titles(titles: &[&'static str], palette: Palette) -> Row<'static> {
    Row::new(titles.iter().map(|title| Cell::new(*title))).style(palette.title())
}

fn locks(frame: &mut Frame<'_>, app: &App, area: Rect, palette: Palette) {
    let rows = app.rows();
    if rows.is_empty() && app.snapshot.is_some() {
        let text = if app.filter.is_empty() { "nothing is held" } else { "nothing contains that" };
        return frame.render_widget(Paragraph::new(text), area);
    }
    let line = |row: &&LockRow| {
        let who = row.who();
        let who = if who.is_empty() { row.owners() } else { who };
        let alarm = if row.has_findings() { palette.alarm() } else { Style::new() };
        Row::new([
            cell(&row.name()).style(alarm),
            cell(row.kind()),
            cell(&row.ttl()),
            cell(&time(row.held_ms())),
            cell(&row.waiters()),
            cell(&who),
        ])
    };
    let widths = [
        Constraint::Fill(3),
        Constraint::Length(10),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(4),
        Constraint::Fill(5),
    ];
    let head = titles(&["NAME", "KIND", "TTL", "HELD", "WAIT", "HELD BY"], palette);
    let table = Table::new(rows.iter().map(line), widths)
        .header(head)
        .column_spacing(1)
        .row_highlight_style(palette.selected());
    let mut state = TableState::new().with_selected(app.selected_row(&rows));
    frame.render_stateful_widget(table, area, &mut state);
}

fn blocking(frame: &mut Frame<'_>, app: &App, area: Rect, palette: Palette) {
    let lines = app.lines();
    if lines.is_empty() {
        return frame.render_widget(Paragraph::new("nobody waits"), area);
    }
    let row = |line: &blocking::Line| {
        let style = if line.is_cycle {
            palette.alarm()
        } else if line.name.is_some() {
            Style::new()
        } else {
            palette.quiet()
        };
        Row::new([Cell::new(format!("{}{}", "  ".repeat(line.depth), line.text))]).style(style)
    };
    let table =
        Table::new(lines.iter().map(row), [Constraint::Fill(1)]).row_highlight_style(palette.selected());
    let mut state = TableState::new().with_selected(Some(app.at.min(lines.len() - 1)));
    frame.render_stateful_widget(table, area, &mut state);
}

fn clients(frame: &mut Frame<'_>, app: &App, area: Rect, palette: Palette) {
    let clients = app.clients();
    if clients.is_empty() {
        return frame
            .render_widget(Paragraph::new("no client has held or waited for longer than a second"), area);
    }
    let row = |client: &ClientRecord| {
        Row::new([
            Cell::new(who::named(client) + if client.is_over { " (ended)" } else { "" }),
            cell(&human(client.lives)),
            cell(&client.holds.len().to_string()),
            cell(&client.waits.len().to_string()),
            cell(client.why.as_deref().unwrap_or_default()),
        ])
    };
    let widths = [
        Constraint::Fill(3),
        Constraint::Length(8),
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Fill(2),
    ];
    let table = Table::new(clients.iter().map(row), widths)
        .header(titles(&["CLIENT", "LIVES", "HOLDS", "WAITS", "WHY"], palette))
        .column_spacing(1)
        .row_highlight_style(palette.selected());
    let mut state = TableState::new().with_selected(Some(app.at.min(clients.len() - 1)));
    frame.render_stateful_widget(table, area, &mut state);
}

fn alarm_page(frame: &mut Frame<'_>, app: &App, area: Rect, palette: Palette) {
    if app.alarms.is_empty() && app.snapshot.is_some() {
        return frame.render_widget(Paragraph::new("nothing is wrong"), area);
    }
    let row = |alarm: &Alarm| {
        let style = if alarm.severity == Severity::Problem { palette.alarm() } else { palette.notice() };
        let remedy = alarm.remedy.map(|remedy| format!("  {remedy}"));
        let lines = parts(&alarm.to_string(), usize::from(area.width));
        let remedies = remedy.iter().flat_map(|remedy| parts(remedy, usize::from(area.width)));
        let all: Vec<Line<'_>> = lines
            .into_iter()
            .map(|part| Line::styled(part, style))
            .chain(remedies.map(|part| Line::styled(part, palette.quiet())))
            .collect();
        let height = u16::try_from(all.len()).unwrap_or(u16::MAX);
        Row::new([Cell::new(ratatui::text::Text::from(all))]).height(height)
    };
    let table =
        Table::new(app.alarms.iter().map(row), [Constraint::Fill(1)]).row_highlight_style(palette.selected());
    let last = app.alarms.len().checked_sub(1);
    let mut state = TableState::new().with_selected(last.map(|last| app.at.min(last)));
    frame.render_stateful_widget(table, area, &mut state);
}

fn detail(frame: &mut Frame<'_>, app: &App, name: &LockName, area: Rect, palette: Palette) {
    let mut text = Text::new(area.width, palette);
    match app.row(name) {
        None => text.line("", &format!("{} is free now", escape::quoted(name))),
        Some(row) => {
            let cells = Detail(row.clone()).cells();
            let filled = Detail::COLUMNS.iter().zip(cells).filter(|(_, cell)| !cell.is_empty());
            filled.for_each(|(title, cell)| {
                text.line(&title.to_lowercase(), &escape::text(&cell).to_string());
            });
        }
    }
    let blocked = app.snapshot.iter().flat_map(|snapshot| &snapshot.why.names);
    let waiting = blocked.filter(|blocked| blocked.state.name == *name).flat_map(|blocked| &blocked.waiting);
    for (at, waits) in waiting.enumerate() {
        let told = format!("{} since {}", who::with_reason(&waits.client), human(waits.told.lasts));
        text.line(if at == 0 { "waiting" } else { "" }, &told);
    }
    let word = escape::shell_word(name).unwrap_or_else(|| "NAME".into());
    text.line("", "");
    text.line("shell", &format!("redlatch show {word}"));
    text.line("", &format!("redlatch why {word}"));
    text.draw(frame, app.at, area);
}

/// Titles with text beside them, in lines that are cut where the screen ends.
struct Text {
    lines: Vec<Line<'static>>,
    width: usize,
    palette: Palette,
}

/// How wide a title is.
const TITLE_WIDTH: usize = 18;

impl Text {
    fn new(width: u16, palette: Palette) -> Self {
        Text { lines: Vec::new(), width: usize::from(width), palette }
    }

    fn line(&mut self, title: &str, text: &str) {
        let mut title = format!("{title:TITLE_WIDTH$}");
        for part in parts(text, self.width.saturating_sub(title.width())) {
            let title = std::mem::replace(&mut title, " ".repeat(TITLE_WIDTH));
            self.lines.push(Line::from(vec![Span::styled(title, self.palette.title()), Span::raw(part)]));
        }
    }

    /// Draws it from this line on, and not beyond the last one.
    fn draw(self, frame: &mut Frame<'_>, at: usize, area: Rect) {
        let last = self.lines.len().saturating_sub(usize::from(area.height));
        let shown: Vec<Line<'_>> = self.lines.into_iter().skip(at.min(last)).collect();
        frame.render_widget(Paragraph::new(shown), area);
    }
}

/// A text in parts of at most this width, at least one of them; each has a character, however wide that is.
fn parts(text: &str, width: usize) -> Vec<String> {
    let (mut parts, mut used) = (vec![String::new()], 0);
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used > 0 && used + wide > width {
            parts.push(String::new());
            used = 0;
        }
        used += wide;
        parts.last_mut().expect("there is one from the beginning").push(c);
    }
    parts
}

fn help(frame: &mut Frame<'_>, area: Rect, palette: Palette) {
    let mut text = Text::new(area.width, palette);
    KEYS.iter().for_each(|(key, what)| text.line(key, what));
    text.line("", "");
    text.line("HELD, HELD BY", "what clients told in the last half minute; all else is what the server says");
    text.draw(frame, 0, area);
}

fn question(frame: &mut Frame<'_>, force: &Force, palette: Palette) {
    let (owner, told) = force.holder();
    let told = if told.is_empty() { String::new() } else { format!(" of {told}") };
    let from = format!("from {}", escape::text(&format!("{owner}{told}")));
    let mut text: Vec<Line<'static>> = Vec::new();
    match &force.asks {
        Asks::Holder => {
            text.push(Line::raw("From which holder? (↑ ↓, Enter)"));
            // Around the one that is chosen.
            let first = force.at.saturating_sub(4);
            for (at, (owner, told)) in force.holders.iter().enumerate().skip(first).take(8) {
                let style = if at == force.at { palette.selected() } else { Style::new() };
                text.push(Line::styled(escape::text(&format!("{owner} {told}")).to_string(), style));
            }
        }
        Asks::Reason(reason) => {
            text.extend([Line::raw(from), Line::raw(""), Line::raw("Why? The holder is told. (Enter)")]);
            text.push(Line::raw(format!("> {}_", escape::text(reason))));
        }
        Asks::Yes { reason, typed } => {
            text.extend([Line::raw(from), Line::raw(format!("because {}", escape::text(reason)))]);
            text.push(Line::styled("The holder may still be at work.", palette.alarm()));
            text.push(Line::raw(format!("Type {YES}: {}_", escape::text(typed))));
        }
    }
    text.push(Line::styled("Esc: change nothing", palette.quiet()));
    let screen = frame.area();
    let width = screen.width.saturating_sub(4).min(100);
    let inner = usize::from(width.saturating_sub(2));
    let cut = |line: Line<'static>| {
        let style = line.style;
        parts(&line.to_string(), inner).into_iter().map(move |part| Line::styled(part, style))
    };
    let text: Vec<Line<'_>> = text.into_iter().flat_map(cut).collect();
    let height = u16::try_from(text.len()).unwrap_or(u16::MAX).saturating_add(2).min(screen.height);
    let [area] =
        Layout::vertical([Constraint::Length(height)]).flex(ratatui::layout::Flex::Center).areas(screen);
    let [area] =
        Layout::horizontal([Constraint::Length(width)]).flex(ratatui::layout::Flex::Center).areas(area);
    let title = format!(" Take {} ", escape::quoted(&force.name));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(title)), area);
}
