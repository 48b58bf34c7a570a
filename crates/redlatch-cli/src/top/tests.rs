use std::time::Duration;

use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};
use redlatch::{Client, Guard};

use super::{
    app::{App, Deed, View},
    draw::{self, Palette},
};
use crate::snapshot::{Scope, Snapshot, order::Sort};

/// Names that are held, and what is seen of them.
async fn held(names: &[&str]) -> (Client, Vec<Guard>, App) {
    let client = Client::connect("memory:").await.unwrap();
    let mut guards = Vec::new();
    for name in names {
        guards.push(client.lock(*name).lock().await.unwrap());
    }
    let mut app = App::new("memory:".into(), Duration::from_secs(30));
    app.looked(Ok(look(&client).await));
    (client, guards, app)
}

async fn look(client: &Client) -> Snapshot {
    let scope = Scope { limit: 100, ..Scope::default() };
    Snapshot::take(client, &scope).await.unwrap()
}

fn press(app: &mut App, code: KeyCode) -> Deed {
    app.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_text(app: &mut App, text: &str) {
    for c in text.chars() {
        assert_eq!(press(app, KeyCode::Char(c)), Deed::None);
    }
}

fn drawn(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, app, None, Palette { is_colored: false })).unwrap();
    terminal.backend().to_string()
}

fn names(app: &App) -> Vec<String> {
    app.rows().iter().map(|row| row.key.to_string()).collect()
}

#[tokio::test]
async fn what_is_selected_stays_selected_when_lines_move() {
    let (client, mut guards, mut app) = held(&["b", "d", "f"]).await;
    press(&mut app, KeyCode::Down);
    let selected = |app: &App| app.selected_row(&app.rows()).map(|at| names(app)[at].clone());
    assert_eq!(selected(&app).as_deref(), Some("d"));
    guards.push(client.lock("a").lock().await.unwrap());
    app.looked(Ok(look(&client).await));
    assert_eq!(
        (names(&app), selected(&app).as_deref()),
        (vec!["a".into(), "b".into(), "d".into(), "f".into()], Some("d"))
    );
    guards.remove(1).unlock().await.unwrap();
    app.looked(Ok(look(&client).await));
    assert_eq!(selected(&app).as_deref(), Some("a"), "the first one once it is gone");
    press(&mut app, KeyCode::End);
    assert_eq!(selected(&app).as_deref(), Some("f"));
    press(&mut app, KeyCode::Down);
    assert_eq!(selected(&app).as_deref(), Some("f"), "the last line is the last");
}

#[tokio::test]
async fn names_are_filtered_and_sorted() {
    let (_client, _guards, mut app) = held(&["import:2", "Import:1", "deploy"]).await;
    app.sort = Sort::Name;
    assert_eq!(names(&app), ["Import:1", "deploy", "import:2"]);
    press(&mut app, KeyCode::Char('r'));
    assert_eq!(names(&app), ["import:2", "deploy", "Import:1"]);
    press(&mut app, KeyCode::Char('/'));
    type_text(&mut app, "iMp");
    assert_eq!(names(&app), ["import:2", "Import:1"]);
    // A key that means something elsewhere is a letter here.
    type_text(&mut app, "q");
    assert!(names(&app).is_empty() && drawn(&app, 80, 24).contains("nothing contains that"));
    press(&mut app, KeyCode::Backspace);
    press(&mut app, KeyCode::Enter);
    assert_eq!(names(&app), ["import:2", "Import:1"]);
    press(&mut app, KeyCode::Esc);
    assert_eq!(names(&app).len(), 3);
    assert_eq!(press(&mut app, KeyCode::Char('q')), Deed::Quit);
}

#[tokio::test]
async fn a_lock_is_taken_after_a_reason_and_a_yes_only() {
    let (_client, guards, mut app) = held(&["deploy"]).await;
    let begin = |app: &mut App, reason: &str| {
        press(app, KeyCode::Char('f'));
        // No reason, no question.
        press(app, KeyCode::Enter);
        assert!(drawn(app, 80, 24).contains("The holder is told"));
        type_text(app, reason);
        press(app, KeyCode::Enter);
        assert!(drawn(app, 80, 24).contains("Type yes"));
    };
    for no in ["", "y", "Yes", "no"] {
        begin(&mut app, "stuck");
        type_text(&mut app, no);
        assert_eq!(press(&mut app, KeyCode::Enter), Deed::None);
        assert_eq!(app.message.as_deref(), Some("nothing was changed"));
    }
    begin(&mut app, "stuck");
    press(&mut app, KeyCode::Esc);
    assert!(app.force.is_none());
    begin(&mut app, "stuck since noon");
    type_text(&mut app, "yes");
    let owner = guards[0].owner().to_text();
    let wanted = Deed::Force { name: "deploy".into(), owner, reason: "stuck since noon".into() };
    assert_eq!(press(&mut app, KeyCode::Enter), wanted);
}

#[tokio::test]
async fn of_several_readers_one_is_chosen() {
    let client = Client::connect("memory:").await.unwrap();
    let lock = client.read_write_lock("table");
    let guards = [lock.read().lock().await.unwrap(), lock.read().lock().await.unwrap()];
    let mut app = App::new("memory:".into(), Duration::from_secs(30));
    app.looked(Ok(look(&client).await));
    press(&mut app, KeyCode::Char('f'));
    assert!(drawn(&app, 80, 24).contains("From which holder?"));
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Enter);
    type_text(&mut app, "x");
    press(&mut app, KeyCode::Enter);
    type_text(&mut app, "yes");
    let Deed::Force { owner, .. } = press(&mut app, KeyCode::Enter) else { panic!("{app:?}") };
    let second = app.rows()[0].takeable()[1].0.clone();
    assert_eq!(owner, second);
    assert!(guards.iter().any(|guard| guard.owner().to_text() == owner));
}

#[tokio::test]
async fn every_view_is_drawn_on_any_terminal() {
    let (_client, _guards, mut app) =
        held(&["a", "錠前 with a long name that goes on and on", "\x1b[2Jx\u{202e}"]).await;
    app.looked(Err("the server cannot be asked".into()));
    let views = [
        View::Locks,
        View::Blocking,
        View::Clients,
        View::Alarms,
        View::Detail("a".into()),
        View::Detail("none".into()),
        View::Help,
    ];
    for view in views {
        for force in [false, true] {
            app.view = if force { View::Locks } else { view.clone() };
            app.force = None;
            if force {
                press(&mut app, KeyCode::Char('f'));
            }
            for (width, height) in [(1, 1), (2, 3), (20, 5), (80, 24), (300, 100)] {
                let screen = drawn(&app, width, height);
                assert!(!screen.contains('\x1b') && !screen.contains('\u{202e}'), "{screen}");
            }
            app.at = usize::MAX;
            drawn(&app, 80, 24);
            app.at = 0;
        }
    }
}

#[tokio::test]
async fn names_that_a_shell_would_read_otherwise_are_quoted() {
    let (_client, _guards, mut app) = held(&["a b'c", "-x", "plain:1"]).await;
    for (name, word) in
        [("a b'c", r"show -- 'a b'\''c'"), ("-x", "show -- '-x'"), ("plain:1", "show plain:1")]
    {
        app.view = View::Detail(name.into());
        let screen = drawn(&app, 80, 24);
        assert!(screen.contains(word), "{screen}");
    }
}
