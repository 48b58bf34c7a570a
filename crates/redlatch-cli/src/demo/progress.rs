//! The live view of the sale: a bar on a terminal, plain lines elsewhere, both on stderr.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::talk::Talk;

/// The view of one sale.
pub(super) struct Progress {
    bar: ProgressBar,
    items: u64,
}

impl Progress {
    /// A sale of `items` under a title.
    pub(super) fn new(title: &'static str, items: u32, talk: Talk) -> Self {
        let target = if talk.is_live() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(u64::from(items)), target);
        let template = "{prefix:>10} [{bar:30}] sold {pos:>4} of {msg}";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("##."));
        bar.set_prefix(title);
        bar.set_message(items.to_string());
        Progress { bar, items: u64::from(items) }
    }

    /// One more was sold.
    pub(super) fn sold(&self, sold: u64) {
        // The bar grows with an oversold stock instead of stopping at its end.
        self.bar.set_length(self.items.max(sold));
        self.bar.set_position(sold);
    }

    /// The sale is over; a line of text takes the bar's place.
    pub(super) fn end(self) {
        self.bar.finish_and_clear();
    }
}
