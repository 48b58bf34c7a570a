//! Order, contexts, unknown keys and secrets of the configuration.

use std::{collections::HashMap, ffi::OsString};

use super::*;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

fn load(global: &Global, env: &[(&str, &str)], files: &[PathBuf]) -> Result<Settings, Failure> {
    let env: HashMap<String, OsString> =
        env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Settings::load(
        global,
        &Surroundings { env: Box::new(move |name| env.get(name).cloned()), files: files.to_vec() },
    )
}

fn origin<'a>(settings: &'a Settings, key: &str) -> &'a Origin {
    &settings.shown.iter().find(|shown| shown.key == key).unwrap().origin
}

#[test]
fn an_address_map_comes_from_anywhere_and_is_checked() {
    let place = Place::new();
    let files = [place.file("map.toml", "address_map = \"10.0.0.1=near\"\n")];
    let settings = load(&Global::default(), &[], &files).unwrap();
    assert_eq!(settings.address_map.unwrap().to_string(), "10.0.0.1=near");
    let env = [("REDLATCH_ADDRESS_MAP", "10.0.0.1:1=far:2")];
    let settings = load(&Global::default(), &env, &files).unwrap();
    assert_eq!(settings.address_map.unwrap().to_string(), "10.0.0.1:1=far:2");
    let flag = Global { address_map: Some("h=127.0.0.1".into()), ..Global::default() };
    let settings = load(&flag, &env, &files).unwrap();
    assert_eq!(origin(&settings, "address_map"), &Origin::Flag("--address-map"));
    let bad = Global { address_map: Some("h".into()), ..Global::default() };
    let failure = load(&bad, &[], &[]).map(drop).unwrap_err().to_string();
    assert!(failure.contains("--address-map") && failure.contains("announced=reachable"), "{failure}");
}

#[test]
fn a_password_file_is_left_to_the_client_to_read_again() {
    let place = Place::new();
    let file = place.file("password", "hunter2\n");
    let env = [("REDLATCH_PASSWORD_FILE", file.to_str().unwrap())];
    let settings = load(&Global::default(), &env, &[]).unwrap();
    assert_eq!(settings.password_file.as_deref(), Some(file.as_path()));
    assert_eq!(settings.password.unwrap().reveal(), "hunter2");
    let both = [env[0], ("REDLATCH_PASSWORD", "other")];
    let settings = load(&Global::default(), &both, &[]).unwrap();
    assert_eq!((settings.password_file, settings.password.unwrap().reveal()), (None, "other"));
}

#[test]
fn flag_then_environment_then_files_then_default() {
    let place = Place::new();
    let user = place.file("user.toml", "url = \"redis://user-file\"\n");
    let system = place.file("system.toml", "url = \"redis://system-file\"\nlease = \"10s\"\n");
    let files = [user.clone(), system.clone()];
    let env = [("REDLATCH_URL", "redis://variable")];
    let flag = Global { url: Some("redis://flag".into()), ..Global::default() };

    let settings = load(&flag, &env, &files).unwrap();
    assert_eq!((settings.url.as_str(), origin(&settings, "url")), ("redis://flag", &Origin::Flag("--url")));
    let settings = load(&Global::default(), &env, &files).unwrap();
    assert_eq!(
        (settings.url.as_str(), origin(&settings, "url")),
        ("redis://variable", &Origin::Env("REDLATCH_URL"))
    );
    let settings = load(&Global::default(), &[], &files).unwrap();
    assert_eq!(
        (settings.url.as_str(), origin(&settings, "url")),
        ("redis://user-file", &Origin::File(user, None))
    );
    assert_eq!(
        (settings.lease, origin(&settings, "lease")),
        (Duration::from_secs(10), &Origin::File(system, None))
    );
    let settings = load(&Global::default(), &[], &[]).unwrap();
    assert_eq!((settings.url.as_str(), origin(&settings, "url")), ("local:", &Origin::Default));
}

#[test]
fn a_context_beats_top_level_values_and_as_a_flag_the_environment_too() {
    let place = Place::new();
    let user = place.file("user.toml", "url = \"redis://top\"\n");
    let system = place.file("system.toml", "[contexts.prod]\nurl = \"redis://prod\"\n");
    let files = [user, system];
    let env = [("REDLATCH_URL", "redis://variable")];
    let prod = Global { context: Some("prod".into()), ..Global::default() };

    assert_eq!(load(&prod, &env, &files).unwrap().url, "redis://prod");
    assert_eq!(
        load(&Global::default(), &[("REDLATCH_CONTEXT", "prod")], &files).unwrap().url,
        "redis://prod"
    );
    let both = [("REDLATCH_CONTEXT", "prod"), ("REDLATCH_URL", "redis://variable")];
    assert_eq!(load(&Global::default(), &both, &files).unwrap().url, "redis://variable");
    let missing = Global { context: Some("nowhere".into()), ..Global::default() };
    let failure = load(&missing, &[], &files).err().unwrap();
    assert_eq!(failure.code(), crate::exit::CONFIG);
    assert!(failure.to_string().contains("nowhere"));
}

#[test]
fn mistakes_name_the_file_and_never_show_its_content() {
    let place = Place::new();
    for (text, expected) in [
        ("urll = \"redis://u:hush@h\"", "unknown key \"urll\""),
        ("\nurl = redis://u:hush@h", "line 2"),
        ("[contexts.x]\nfoo = \"hush\"", "[contexts.x]"),
        ("lease = 30", "with a unit"),
        ("lease = 3.5", "text in quotes"),
        ("lease = \"soon\"", "lease (from"),
        ("tls_insecure = \"hush?\"", "true or false"),
    ] {
        let file = place.file("c.toml", text);
        let failure = load(&Global::default(), &[], &[file]).err().expect(text);
        assert_eq!(failure.code(), crate::exit::CONFIG);
        assert!(failure.to_string().contains(expected), "{text}: {failure}");
        assert!(!failure.to_string().contains("hush"), "{failure}");
    }
    let named = Global { config: Some(place.0.path().join("absent.toml")), ..Global::default() };
    assert!(load(&named, &[], &[]).is_err(), "a file asked for by name must exist");
}

#[test]
fn passwords_come_from_a_file_or_the_environment_and_stay_hidden() {
    let place = Place::new();
    let password = place.file("password", "from-file\n");
    let config = place.file("c.toml", "password_file = \"password\"\n");
    let revealed = |settings: Settings| {
        assert!(!format!("{:?}", settings.shown).contains("from-"), "{:?}", settings.shown);
        settings.password.map(|secret| secret.reveal().to_owned())
    };
    let env = [(PASSWORD_ENV, "from-variable")];
    let flag = Global { password_file: Some(password), ..Global::default() };
    assert_eq!(revealed(load(&flag, &env, &[]).unwrap()).unwrap(), "from-file");
    assert_eq!(
        revealed(load(&Global::default(), &env, std::slice::from_ref(&config)).unwrap()).unwrap(),
        "from-variable"
    );
    assert_eq!(revealed(load(&Global::default(), &[], &[config]).unwrap()).unwrap(), "from-file");
    assert_eq!(revealed(load(&Global::default(), &[], &[]).unwrap()), None);
    let url = Global { url: Some("redis://u:from-url@h".into()), ..Global::default() };
    revealed(load(&url, &[], &[]).unwrap());
}

#[test]
fn a_redisson_file_stands_where_it_is_named() {
    let place = Place::new();
    let yaml = place.file(
        "redisson.yaml",
        "lockWatchdogTimeout: 20000\nsentinelServersConfig:\n  sentinelAddresses: [redis://s:1]\n  masterName: m\n\
         \x20 password: hush-data\n  sentinelPassword: hush-own\n  timeout: 1500\n  frobnicate: 1\n",
    );
    let toml = place.file("c.toml", "redisson_yaml = \"redisson.yaml\"\nresponse_timeout = \"9s\"\n");
    let of_yaml = |key: &str| Origin::Redisson(yaml.clone(), key.to_owned());

    let settings =
        load(&Global::default(), &[("REDLATCH_LEASE", "5s")], std::slice::from_ref(&toml)).unwrap();
    assert_eq!(settings.url, "redis-sentinel://s:1/m");
    assert_eq!(origin(&settings, "url"), &of_yaml("sentinelServersConfig.sentinelAddresses"));
    // A variable comes before the file that names the YAML, and a key of that same file does too.
    assert_eq!(
        (settings.lease, origin(&settings, "lease")),
        (Duration::from_secs(5), &Origin::Env("REDLATCH_LEASE"))
    );
    assert_eq!(settings.response_timeout, Duration::from_secs(9));
    assert_eq!(origin(&settings, "password"), &of_yaml("sentinelServersConfig.password"));
    assert_eq!(origin(&settings, "sentinel_password"), &of_yaml("sentinelServersConfig.sentinelPassword"));
    assert!(
        settings.password.is_none() && settings.redisson.is_some(),
        "the file's own password is the library's to use"
    );
    assert!(!format!("{:?}", settings.shown).contains("hush"));
    let notice = settings.shown.iter().find(|shown| shown.key == "notice").unwrap();
    assert!(
        notice.origin.to_string().ends_with("redisson.yaml line 8, sentinelServersConfig"),
        "{}",
        notice.origin
    );

    // By flag it comes before the variables.
    let flag = Global { redisson_yaml: Some(yaml.clone()), ..Global::default() };
    let env = [
        ("REDLATCH_LEASE", "5s"),
        ("REDLATCH_PASSWORD", "hush-variable"),
        ("REDLATCH_URL", "redis://elsewhere"),
    ];
    let settings = load(&flag, &env, &[]).unwrap();
    assert_eq!((settings.url.as_str(), settings.lease), ("redis-sentinel://s:1/m", Duration::from_secs(20)));
    assert!(settings.password.is_none());
    let password = place.file("password", "from-file");
    let flags = Global { password_file: Some(password), ..flag.clone() };
    assert_eq!(load(&flags, &[], &[]).unwrap().password.unwrap().reveal(), "from-file");

    // A URL that comes before displaces the whole file: its password is not for another server.
    let settings = load(&Global::default(), &[("REDLATCH_URL", "redis://elsewhere")], &[toml]).unwrap();
    assert_eq!(settings.url, "redis://elsewhere");
    assert!(settings.redisson.is_none() && settings.shown.iter().all(|shown| shown.key != "password"));
    assert_eq!(settings.lease, Duration::from_secs(30));

    // In the URL.
    let url = format!("redisson-yaml:{}", yaml.display());
    let settings = load(&Global { url: Some(url.clone()), ..Global::default() }, &[], &[]).unwrap();
    assert_eq!(settings.url, "redis-sentinel://s:1/m");
    // Both in one place.
    let both = place.file("both.toml", "redisson_yaml = \"redisson.yaml\"\nurl = \"redis://h\"\n");
    let failure = load(&Global::default(), &[], &[both]).err().unwrap();
    assert!(failure.to_string().contains("give one of them"), "{failure}");
    assert_eq!(failure.code(), crate::exit::CONFIG);
    let absent = Global { redisson_yaml: Some(place.0.path().join("absent.yaml")), ..Global::default() };
    let failure = load(&absent, &[], &[]).err().unwrap();
    assert_eq!(failure.code(), crate::exit::CONFIG);
    assert!(
        failure.to_string().contains("--redisson-yaml") && failure.to_string().contains("absent.yaml"),
        "{failure}"
    );
}

#[test]
fn settings_of_topologies_have_keys_and_variables() {
    let place = Place::new();
    let own = place.file("own", "hush-own\n");
    let toml = place.file(
        "c.toml",
        "sentinel_username = \"watch\"\nsentinel_password_file = \"own\"\nsharded = \"compat\"\nscripts = \"functions\"\n\
         client_name = \"app\"\nredisson_fair_wait = \"1m\"\nrenewal_batch = \"10\"\ntls_any_host_name = true\n",
    );
    let settings = load(&Global::default(), &[], std::slice::from_ref(&toml)).unwrap();
    assert_eq!(settings.sentinel_username.as_deref(), Some("watch"));
    assert_eq!(settings.sentinel_password.as_ref().unwrap().reveal(), "hush-own");
    assert_eq!(
        (settings.sharded, settings.scripts),
        (Some(ShardedPubSub::Compat), Some(ScriptMode::Functions))
    );
    assert_eq!((settings.redisson_fair_wait, settings.renewal_batch), (Duration::from_secs(60), 10));
    assert!(settings.tls_any_host_name && settings.client_name.as_deref() == Some("app"));
    let env = [
        ("REDLATCH_SENTINEL_USERNAME", "other"),
        (SENTINEL_PASSWORD_ENV, "from-variable"),
        ("REDLATCH_SHARDED", "off"),
        ("REDLATCH_SCRIPTS", "eval"),
        ("REDLATCH_TLS_ANY_HOST_NAME", "false"),
    ];
    let settings = load(&Global::default(), &env, &[toml]).unwrap();
    assert_eq!(settings.sentinel_username.as_deref(), Some("other"));
    assert_eq!(settings.sentinel_password.as_ref().unwrap().reveal(), "from-variable");
    assert_eq!((settings.sharded, settings.scripts), (Some(ShardedPubSub::Off), Some(ScriptMode::Eval)));
    assert!(!settings.tls_any_host_name);
    for (text, expected) in [
        ("sharded = \"hush\"", "give auto, on, off or compat"),
        ("scripts = \"hush\"", "give eval or functions"),
        ("renewal_batch = \"101\"", "from 1 to 100"),
    ] {
        let file = place.file("bad.toml", text);
        let failure = load(&Global::default(), &[], &[file]).err().expect(text);
        assert!(failure.to_string().contains(expected) && !failure.to_string().contains("hush"), "{failure}");
    }
    drop(own);
}

#[test]
fn a_number_needs_no_quotes_and_a_time_needs_a_unit() {
    let place = Place::new();
    let file = place.file("c.toml", "renewal_batch = 50\n");
    assert_eq!(load(&Global::default(), &[], &[file]).unwrap().renewal_batch, 50);
    let file = place.file("c.toml", "lease = 30\n");
    let refused = load(&Global::default(), &[], &[file]).map(drop).unwrap_err().to_string();
    assert!(refused.contains("lease") && refused.contains("unit"), "{refused}");
}
