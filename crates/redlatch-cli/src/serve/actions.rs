//! What a page may change, where that is allowed: a name is taken from the holder that was on the page.
//!
//! A browser sends its credentials with whatever another page has it send. So a form has a secret of this process in it, which no other page can read, and
//! a request that a browser says was begun elsewhere is refused.

use axum::http::{HeaderMap, HeaderName, header};
use redlatch::LockName;
use serde::Deserialize;

use super::{access::Token, pages};

/// The longest name of a person, and the longest reason, in bytes: as the library takes them.
const TEXT_BYTES_MAX: usize = 1_000;
/// The largest form, in bytes: a name in hexadecimal, an owner, and two texts with each byte in three characters.
pub(super) const FORM_BYTES_MAX: usize = 64 * 1024;

/// What the form sends.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Form {
    hex: String,
    owner: String,
    by: String,
    reason: String,
    meant: String,
    form: String,
}

/// A request that is whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) name: LockName,
    pub(super) owner: String,
    pub(super) by: String,
    pub(super) reason: String,
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It was not sent by a form of this process.
    Forged,
    /// Something is missing or wrong in it.
    Unfit(&'static str),
}

/// Whether a browser says that another page has sent it. One that says nothing is old, or is no browser; the form's secret decides then.
fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?").to_owned());
    let host = text(header::HOST).unwrap_or_default();
    let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, place)| place == host);
    let site = text(HeaderName::from_static("sec-fetch-site"));
    text(header::ORIGIN).is_some_and(|origin| !is_own(&origin))
        || site.is_some_and(|site| site != "same-origin")
}

/// What is asked for, if it was a form of this process that asked.
pub(super) fn asked(form: Form, headers: &HeaderMap, secret: &Token) -> Result<Asked, Refusal> {
    if is_from_elsewhere(headers) || !secret.is(form.form.as_bytes()) {
        return Err(Refusal::Forged);
    }
    let name = pages::of_hex(&form.hex).and_then(|bytes| LockName::new(bytes).ok());
    let name = name.ok_or(Refusal::Unfit("hex is not the name of a lock"))?;
    let text = |text: String, what| {
        let text = text.trim().to_owned();
        let is_line = !text.is_empty() && text.len() <= TEXT_BYTES_MAX && !text.contains(['\n', '\r']);
        if is_line { Ok(text) } else { Err(Refusal::Unfit(what)) }
    };
    if form.owner.is_empty() {
        return Err(Refusal::Unfit("no owner is named"));
    }
    let by = text(form.by, "say who you are, in one line of at most 1,000 bytes")?;
    let reason = text(form.reason, "give a reason, in one line of at most 1,000 bytes")?;
    if form.meant != "yes" {
        return Err(Refusal::Unfit("say that it is meant: the holder may still be at work"));
    }
    Ok(Asked { name, owner: form.owner, by, reason })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::config::Secret;

    fn form() -> Form {
        let text = str::to_owned;
        Form {
            hex: text("6a6f62"),
            owner: text("id:7"),
            by: text("anna"),
            reason: text(" it hangs "),
            meant: text("yes"),
            form: text("geheim"),
        }
    }

    fn ask(form: Form, headers: &[(&'static str, &'static str)]) -> Result<Asked, Refusal> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        asked(form, &map, &Token::of(Secret::of("geheim".into())))
    }

    #[test]
    fn a_form_of_this_process_asks_and_no_other() {
        let own = [("host", "ops:7117"), ("origin", "https://ops:7117"), ("sec-fetch-site", "same-origin")];
        let asked =
            Asked { name: "job".into(), owner: "id:7".into(), by: "anna".into(), reason: "it hangs".into() };
        assert_eq!(ask(form(), &own), Ok(asked));
        assert!(ask(form(), &[]).is_ok(), "an old browser, or none");
        for forged in [
            &[("host", "ops:7117"), ("origin", "https://evil")][..],
            &[("host", "ops:7117"), ("origin", "http://ops:7118")],
            &[("host", "ops:7117"), ("origin", "null")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none")],
        ] {
            assert_eq!(ask(form(), forged), Err(Refusal::Forged), "{forged:?}");
        }
        for secret in ["", "geheim2", "geheimgeheim"] {
            assert_eq!(ask(Form { form: secret.into(), ..form() }, &own), Err(Refusal::Forged), "{secret}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        for unfit in [
            Form { hex: "6a6".into(), ..form() },
            Form { hex: String::new(), ..form() },
            Form { owner: String::new(), ..form() },
            Form { by: "  ".into(), ..form() },
            Form { by: "a\nb".into(), ..form() },
            Form { reason: String::new(), ..form() },
            Form { reason: long, ..form() },
            Form { meant: String::new(), ..form() },
        ] {
            let asked = format!("{unfit:?}");
            assert!(matches!(ask(unfit, &[]), Err(Refusal::Unfit(_))), "{asked}");
        }
    }
}
