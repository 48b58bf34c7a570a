//! Order, contexts, unknown keys and secrets of the configuration.

use std::collections::HashMap;

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
        ("lease = 30", "text in quotes"),
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
