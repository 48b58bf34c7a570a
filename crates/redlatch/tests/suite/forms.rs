//! The forms in which the scripts of the read-write lock go out: as they are, or with all keys declared, for servers that want
//! that. What is left on the server must not depend on the form, so the tests of that run once with each.

use std::ops::Deref;

use redlatch::{Client, ClientBuilder, scripts};
use redlatch_testkit::{
    proxy::{Action, Match, Proxy, RuleId},
    resp,
    server::RedisServer,
};

/// One of the forms.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    Plain,
    Declared,
}

/// Each test once in every form.
macro_rules! in_every_form {
    ($($name:ident),* $(,)?) => {
        in_every_form!(@form plain Plain $($name)*);
        in_every_form!(@form declared Declared $($name)*);
    };
    (@form $module:ident $form:ident $($name:ident)*) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::forms::Form::$form).await;
            })*
        }
    };
}
pub(crate) use in_every_form;

/// A server of its own, because the whole keyspace is compared.
pub(crate) struct Alone {
    server: RedisServer,
    strict: Option<Strict>,
}

/// What makes a client take its server for one that wants all keys declared.
struct Strict {
    proxy: Proxy,
    refusals: Vec<RuleId>,
}

impl Strict {
    /// All scripts that have another form are refused in the plain one.
    fn start(server: &RedisServer) -> Self {
        let proxy = Proxy::start(&server.url()).unwrap();
        let refusal = Action::ReplaceReply(resp::error("ERR the script touches an undeclared key"));
        // Those that only look at any kind of lock have one form.
        let plain = scripts::ALL.iter().filter(|script| {
            script.source().contains(":rwlock_timeout") && !["show", "list"].contains(&script.name())
        });
        let refused = |sha1: &str| proxy.rule(Match::script().arg_contains(sha1), refusal.clone());
        let refusals: Vec<RuleId> = plain.map(|script| refused(script.sha1())).collect();
        assert!(refusals.len() > 5, "the scripts were not found");
        Strict { proxy, refusals }
    }

    fn refused(&self) -> u64 {
        self.refusals.iter().map(|rule| self.proxy.fired(*rule)).sum()
    }
}

impl Form {
    pub(crate) async fn alone(self) -> (Alone, Client) {
        self.with(|builder| builder).await
    }

    /// The same with settings of the client.
    pub(crate) async fn with(self, settings: impl FnOnce(ClientBuilder) -> ClientBuilder) -> (Alone, Client) {
        let server = RedisServer::start().unwrap();
        let strict = match self {
            Form::Plain => None,
            Form::Declared => Some(Strict::start(&server)),
        };
        let url = strict.as_ref().map_or_else(|| server.url(), |strict| strict.proxy.url());
        let client = settings(Client::builder().url(url)).connect().await.unwrap();
        if strict.is_some() {
            // One refusal is enough for all that the client does from then on.
            client.read_write_lock("taught").read().lock().await.unwrap().unlock().await.unwrap();
        }
        (Alone { server, strict }, client)
    }
}

impl Deref for Alone {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.server
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some(strict) = &self.strict
            && !std::thread::panicking()
        {
            assert_eq!(strict.refused(), 1, "how often a script went out in its plain form");
        }
    }
}
