//! `redlatch demo`: the protected sales sell exactly what there is, and the unprotected one does not.

use redlatch_testkit::server::RedisServer;
use serde_json::Value;

use crate::support::{Place, both};

fn flash_sale(place: &Place) {
    let output = place.output(["demo", "-o", "json"]);
    assert!(output.status.success(), "{output:?}");
    let table: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = table["items"].as_array().unwrap();
    let oversold: Vec<_> =
        rows.iter().map(|row| (row["way"].as_str().unwrap(), row["oversold"].as_u64().unwrap())).collect();
    assert_eq!(oversold[..2], [("script", 0), ("lock", 0)], "{table}");
    assert_eq!((&rows[0]["sold"], &rows[1]["sold"]), (&15.into(), &15.into()), "{table}");
    assert!(oversold[2].0 == "no lock" && oversold[2].1 > 0, "the control must really race: {table}");
    assert!(both(&output).contains("8 processes buy 15 items"), "{output:?}");
}

#[test]
fn only_the_unprotected_sale_oversells_on_the_local_engine() {
    flash_sale(&Place::local());
}

#[test]
fn only_the_unprotected_sale_oversells_on_redis() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    flash_sale(&place);
    let left = server.keys_dump().unwrap();
    assert!(left.values().all(|key| key.kind == "string"), "no lock is left behind: {left:?}");
    flash_sale(&place);
    assert_eq!(server.keys_dump().unwrap().len(), left.len(), "another demo uses the same stocks");
}
