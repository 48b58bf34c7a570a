//! `redlatch config show`: each value and where it came from.

use serde::Serialize;

use super::Context;
use crate::{
    args::{ConfigArgs, ConfigVerb},
    config::Shown,
    exit::{self, Failure},
    output::{self, Record},
    store,
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
    let mut settings = context.settings_to_show()?;
    let mut rows: Vec<Row> = settings.shown.iter().map(Row::from).collect();
    // A user who asks where a value comes from often does so because it does not work.
    let problem = settings.unread.take().or_else(|| store::check(&settings).err());
    if let Some(problem) = &problem {
        rows.push(Row { key: "problem", value: Some(problem.to_string()), origin: "-".into() });
    }
    output::list(output::format(*output, &settings), &rows)?;
    Ok(problem.map_or(exit::OK, |problem| problem.code()))
}
