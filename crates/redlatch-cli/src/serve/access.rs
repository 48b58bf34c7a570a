//! Who may look: a token, as the password of HTTP Basic or as a bearer token. A browser keeps Basic credentials for one scheme, host and port;
//! a cookie would be sent to every port of the host.

use std::{fmt, fs::File, io::Read};

use axum::http::{HeaderMap, header};

use crate::{config::Secret, exit::Failure};

/// The user in the address that a browser is given. Any name is taken.
pub(super) const USER: &str = "redlatch";
/// How many random bytes a token of ours has.
const TOKEN_BYTES: usize = 16;

/// What a request has to know.
pub(super) struct Token(Secret);

impl Token {
    pub(super) fn of(secret: Secret) -> Self {
        Token(secret)
    }

    /// A new one.
    ///
    /// # Errors
    ///
    /// Internal, when the system gives no random bytes.
    pub(super) fn new() -> Result<Self, Failure> {
        let mut bytes = [0; TOKEN_BYTES];
        let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
        read.map_err(|error| Failure::internal(format!("no random bytes: {error}")))?;
        Ok(Token(Secret::of(bytes.iter().map(|byte| format!("{byte:02x}")).collect())))
    }

    /// For the one address that is told to the person who started it.
    pub(super) fn reveal(&self) -> &str {
        self.0.reveal()
    }

    /// Whether a request with these headers may look.
    pub(super) fn allows(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, rest)) = given.and_then(|value| value.split_once(' ')) else { return false };
        let given = match scheme.to_ascii_lowercase().as_str() {
            "bearer" => Some(rest.trim().as_bytes().to_vec()),
            "basic" => password(rest.trim()),
            _ => None,
        };
        given.is_some_and(|given| self.is(&given))
    }

    /// Whether this is the token.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        is_same(given, self.0.reveal().as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

/// The password in the credentials `user:password` in base64.
fn password(encoded: &str) -> Option<Vec<u8>> {
    let decoded = base64(encoded)?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some(decoded[colon + 1..].to_vec())
}

/// Base64 with or without padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Some(bytes)
}

/// Compares without telling by the time it takes how much of it is right.
fn is_same(given: &[u8], wanted: &[u8]) -> bool {
    let differs = given.iter().zip(wanted.iter().cycle()).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == wanted.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn the_token_is_taken_in_both_forms_and_nothing_else() {
        let token = Token::of(Secret::of("geheim:1".into()));
        let allows = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            token.allows(&headers)
        };
        // any:geheim:1, :geheim:1
        for right in ["Bearer geheim:1", "bearer  geheim:1", "Basic YW55OmdlaGVpbTox", "basic OmdlaGVpbTox"] {
            assert!(allows(right), "{right}");
        }
        // any:geheim, any:, geheim:1 (which is the password 1), no base64
        for wrong in [
            "Bearer geheim:",
            "Bearer geheim:12",
            "Bearer",
            "Bearer ",
            "geheim:1",
            "Basic geheim:1",
            "Basic YW55OmdlaGVpbQ==",
            "Basic YW55Og==",
            "Basic Z2VoZWltOjE=",
            "Basic %%%",
            "Digest geheim:1",
        ] {
            assert!(!allows(wrong), "{wrong}");
        }
        assert!(!token.allows(&HeaderMap::new()));
    }

    #[test]
    fn every_new_token_is_another_one() {
        let [a, b] = [(); 2].map(|()| Token::new().unwrap());
        assert!(a.reveal().len() == 2 * TOKEN_BYTES && a.reveal() != b.reveal());
        assert_eq!(format!("{a:?}"), "<redacted>");
    }
}
