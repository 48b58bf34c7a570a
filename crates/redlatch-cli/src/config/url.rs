//! What stands in a store's URL besides the place: credentials and settings.

use crate::escape;

/// Parameters that belong to a log-in.
const LOGIN: [&str; 6] = ["user", "username", "pass", "password", "sentinel_username", "sentinel_password"];

/// The settings that a URL gives by itself, each by its key; secrets as `***`. Nothing for what is no URL of a server.
pub(super) fn settings(url: &str) -> Vec<(&'static str, String)> {
    let Some((_, rest)) = url.trim().split_once("://") else { return Vec::new() };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = place.split('/').next().unwrap_or_default();
    let mut found = Vec::new();
    if let Some((login, _)) = authority.rsplit_once('@') {
        // One piece alone is the password.
        let (user, password) = login.split_once(':').unwrap_or(("", login));
        if !user.is_empty() {
            found.push(("username", escape::text(user).to_string()));
        }
        if !password.is_empty() {
            found.push(("password", "***".to_owned()));
        }
    }
    for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let key = match key {
            "user" | "username" => "username",
            "pass" | "password" => "password",
            "sentinel_username" => "sentinel_username",
            "sentinel_password" => "sentinel_password",
            "sharded" => "sharded",
            "scripts" => "scripts",
            "address_map" => "address_map",
            _ => continue,
        };
        let value =
            if key.ends_with("password") { "***".to_owned() } else { escape::text(value).to_string() };
        found.push((key, value));
    }
    found
}

/// The URL for a reader who is not to have its credentials. What cannot be taken apart becomes a URL that is refused: none at all
/// would mean the local engine.
pub(crate) fn without_credentials(url: &str) -> String {
    if !url.contains('@') && !url.contains('?') {
        return url.to_owned();
    }
    let Some((scheme, rest)) = url.split_once("://") else { return escape::url(url) };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    let kept: Vec<&str> = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !LOGIN.contains(&pair.split('=').next().unwrap_or_default()))
        .collect();
    let mark = if kept.is_empty() { "" } else { "?" };
    let bare = format!("{scheme}://{hosts}{path}{mark}{}", kept.join("&"));
    // An `@` that is left may end a password with a character in it that should have been encoded.
    let is_path = hosts.is_empty() && !kept.iter().any(|pair| pair.contains('@'));
    if bare.contains('@') && !is_path { escape::url(url) } else { bare }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_loses_its_credentials_and_nothing_else() {
        for (url, bare) in [
            ("redis://h:1/2", "redis://h:1/2"),
            ("redis://user:hush@h:1/2", "redis://h:1/2"),
            ("redis://hush@h", "redis://h"),
            ("redis://u:hu@sh@h", "redis://h"),
            (
                "redis-sentinel://u:hush@a,b/master/1?sentinel_password=hush&sharded=off",
                "redis-sentinel://a,b/master/1?sharded=off",
            ),
            ("unix:///run/a@b.sock?db=1&user=x&password=hush", "unix:///run/a@b.sock?db=1"),
            ("unix:///run/a.sock?user=x&pass=hush&db=1", "unix:///run/a.sock?db=1"),
            ("redis-cluster://a:1,b:2?scripts=functions", "redis-cluster://a:1,b:2?scripts=functions"),
            ("local:", "local:"),
            ("redisson-yaml:/etc/a.yaml", "redisson-yaml:/etc/a.yaml"),
        ] {
            assert_eq!(without_credentials(url), bare, "{url}");
        }
    }

    #[test]
    fn what_is_no_url_is_not_passed_on_and_not_lost_either() {
        for url in ["redis://u:hu/sh@h", "redis://u:hu?sh@h", "u:hush@h", "redis:/u:hush@h"] {
            let bare = without_credentials(url);
            assert!(!bare.contains("hu") && !bare.is_empty(), "{url}: {bare}");
        }
    }

    #[test]
    fn settings_of_a_url_are_found_without_their_secrets() {
        let found = settings(
            "redis-sentinel://app:hush@a,b/m?sentinel_username=ops&sentinel_password=hush&sharded=on",
        );
        let found: Vec<_> = found.iter().map(|(key, value)| (*key, value.as_str())).collect();
        assert_eq!(
            found,
            [
                ("username", "app"),
                ("password", "***"),
                ("sentinel_username", "ops"),
                ("sentinel_password", "***"),
                ("sharded", "on")
            ]
        );
        assert_eq!(settings("redis://hush@h"), [("password", "***".to_owned())]);
        assert_eq!(settings("unix:///s?pass=hush"), [("password", "***".to_owned())]);
        assert_eq!(settings("redis-cluster://h?address_map=a=b"), [("address_map", "a=b".to_owned())]);
        assert!(settings("redis://h").is_empty() && settings("local:").is_empty());
    }
}
