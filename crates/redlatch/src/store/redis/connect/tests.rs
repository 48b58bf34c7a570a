use super::*;
use crate::{client::Client, config::url::StoreUrl};

#[tokio::test]
async fn a_password_in_the_open_is_noticed() {
    for (url, shown) in [
        ("redis://:pw@db.example:6379", true),
        ("redis://:pw@10.0.0.1", true),
        ("redis://:pw@[2001:db8::1]", true),
        ("redis://:pw@127.0.0.2", false),
        ("redis://:pw@localhost", false),
        ("redis://:pw@[::1]", false),
        ("redis://db.example", false),
        ("rediss://:pw@db.example", false),
    ] {
        let StoreUrl::Redis(server) = StoreUrl::parse(url).unwrap() else { panic!("{url}") };
        let config = Client::builder().url(url).config().clone();
        assert_eq!(Dial::new(server, &config, &Handle::current()).unwrap().shows_password(), shown, "{url}");
    }
}
