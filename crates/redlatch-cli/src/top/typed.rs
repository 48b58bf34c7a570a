//! Text that is being typed.

use ratatui::crossterm::event::KeyCode;

/// The longest text that can be typed, in characters.
const TYPED_MAX: usize = 200;

/// Types into a text.
pub(super) fn edit(text: &mut String, code: KeyCode) {
    match code {
        KeyCode::Backspace => _ = text.pop(),
        KeyCode::Char(c) if text.chars().count() < TYPED_MAX => text.push(c),
        _ => {}
    }
}
