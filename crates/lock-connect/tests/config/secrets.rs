//! A password shows nowhere: neither in `Debug` of whatever was read or built, nor in an error and its sources.

use std::{error::Error as _, fmt::Write as _};

use lock_connect::LockConfig;
use serde_json::json;

use crate::read;

const CANARY: &str = "canary-3f9c";

/// All that a configuration says of itself and that building from it says.
fn all_of(config: &LockConfig) -> String {
    let mut text = format!("{config:?} {config:#?}");
    match config.locker() {
        Ok(locker) => write!(text, " {locker} {locker:?} {locker:#?} {}", locker.guarantees()).unwrap(),
        Err(error) => write!(text, " {error} {error:?} {error:#?} {}", error.source().unwrap()).unwrap(),
    }
    match config.scoped_locker() {
        Ok(locker) => write!(text, " {locker} {locker:?} {locker:#?}").unwrap(),
        Err(error) => write!(text, " {error:?} {error:#?}").unwrap(),
    }
    text
}

#[test]
fn password_shows_nowhere_wherever_it_stands() {
    let url = format!("postgres://app:{CANARY}@db/app");
    let bad = format!("postgres://app:{CANARY}@db:port/app?sslmode=x");
    let unescaped = format!("postgres://app:p@{CANARY}@db/app");
    let mut configs: Vec<_> = [
        url.clone(),
        bad.clone(),
        unescaped.clone(),
        format!("postgres:{CANARY}"),
        format!("memory:{CANARY}"),
        format!("redis://:{CANARY}@db"),
        format!("app:{CANARY}@db"),
        format!("password={CANARY}"),
        format!("{CANARY}@db:5432"),
        format!("host=db password='{CANARY}'"),
    ]
    .map(LockConfig::new)
    .into();
    for part in [
        json!({ "url": url }),
        json!({ "url": bad, "pool_size": 0 }),
        json!({ "url": unescaped }),
        json!({ "url": [url] }),
        json!({ "url": { CANARY: CANARY } }),
        json!({ "key_secret": CANARY, "url": url }),
        json!({ (url.clone()): 5 }),
        json!(url),
        json!([url]),
    ] {
        configs.push(read(json!({ "provider": "postgres", "postgres": part })));
        configs.push(read(json!({ "provider": url, "postgres": part })));
        configs.push(read(json!({ "provider": "memory", "postgres": part, "memory": part })));
    }
    configs.push(read(json!({ "provider": "memory", (url.clone()): url })));
    configs.push(read(json!({ "provider": [url], "url": url })));
    let vars = [("L_PROVIDER", "postgres"), ("L_POSTGRES_URL", &url), ("L_URL", &url)];
    configs.push(LockConfig::from_vars("L_", vars.map(|(name, value)| (name.into(), value.into()))));
    for config in &configs {
        let text = all_of(config);
        assert!(text.len() > 40 && !text.contains(CANARY), "{text}");
    }
}

#[test]
fn password_shows_in_no_refusal_of_what_is_no_map() {
    let url = format!("postgres://app:{CANARY}@db/app");
    let json = serde_json::from_value::<LockConfig>(json!(url)).unwrap_err();
    let text = serde_json::from_str::<LockConfig>(&json!(url).to_string()).unwrap_err();
    #[derive(Debug, serde::Deserialize)]
    struct App {
        #[serde(rename = "locks")]
        _locks: LockConfig,
    }
    let toml = toml::from_str::<App>(&format!("locks = {url:?}")).unwrap_err();
    for told in
        [json.to_string(), format!("{json:?}"), text.to_string(), format!("{text:?}"), toml.message().to_owned()]
    {
        assert!(told.contains("expected a map of settings") && !told.contains(CANARY), "{told}");
    }
    let postgres = serde_json::from_value::<lock_postgres::PostgresConfig>(json!(url)).unwrap_err().to_string();
    assert!(!postgres.contains(CANARY), "{postgres}");
}

#[test]
fn what_the_canary_is_looked_for_in_is_all_that_is_said() {
    let text = all_of(&LockConfig::new("nonsense"));
    assert!(text.contains("LockConfig") && text.contains("nonsense") && text.contains("InvalidInput"), "{text}");
}
