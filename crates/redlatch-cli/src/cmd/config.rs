//! `redlatch config show`: each value and where it came from.

use serde::Serialize;

use super::Context;
use crate::{
    args::{ConfigArgs, ConfigVerb},
    config::Shown,
    exit::{self, Failure},
    output::{self, Record},
};

#[derive(Serialize)]
struct Row {
    key: &'static str,
    value: Option<String>,
    origin: String,
}

impl Record for Row {
    const COLUMNS: &'static [&'static str] = &["KEY", "VALUE", "ORIGIN"];
    const NARROW: usize = 3;

    fn cells(&self) -> Vec<String> {
        vec![self.key.into(), self.value.clone().unwrap_or_default(), self.origin.clone()]
    }

    fn name(&self) -> String {
        self.key.into()
    }
}

impl From<&Shown> for Row {
    fn from(shown: &Shown) -> Self {
        Row { key: shown.key, value: shown.value.clone(), origin: shown.origin.to_string() }
    }
}

pub(super) fn config(args: &ConfigArgs, context: &Context) -> Result<u8, Failure> {
    let ConfigVerb::Show { output } = &args.verb;
    let settings = context.settings()?;
    let rows: Vec<Row> = settings.shown.iter().map(Row::from).collect();
    output::list(output::format(*output, &settings), &rows)?;
    Ok(exit::OK)
}
