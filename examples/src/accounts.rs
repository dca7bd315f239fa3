//! An HTTP service that keeps, for each account, a balance and the highest fencing token that it was shown. Whoever comes with a lower
//! one is late, and is told so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use distributed_lock::FencingToken;

/// The header with the token, as [`FencingToken`] prints itself: 32 hexadecimal digits.
pub const TOKEN: &str = "fencing-token";

/// What the service keeps.
#[derive(Debug)]
pub struct Accounts {
    checks: bool,
    balances: Mutex<BTreeMap<String, Account>>,
}

#[derive(Clone, Copy, Debug)]
struct Account {
    balance: i64,
    highest: FencingToken,
}

type Answer = (StatusCode, String);

impl Accounts {
    /// A service with these accounts. One that does not check is what most services are, and is here to show what comes of it.
    pub fn new<'a>(checks: bool, balances: impl IntoIterator<Item = (&'a str, i64)>) -> Arc<Self> {
        // Lower than every token of a lock.
        let highest = FencingToken::new(0);
        let balances = balances.into_iter().map(|(name, balance)| (name.to_owned(), Account { balance, highest }));
        Arc::new(Self { checks, balances: Mutex::new(balances.collect()) })
    }

    /// Compares the token and does the work in one step: nobody can come in between.
    fn checked(&self, name: &str, headers: &HeaderMap, work: impl FnOnce(&mut i64)) -> Result<String, Answer> {
        let token = if self.checks { Some(token(headers)?) } else { None };
        let mut accounts = self.balances.lock().unwrap_or_else(PoisonError::into_inner);
        let account = accounts.get_mut(name).ok_or_else(unknown)?;
        if let Some(token) = token {
            let highest = account.highest;
            // An equal one is the same holder again.
            if token < highest {
                let refused = format!("token {token} is older than {highest}, the highest seen\n");
                return Err((StatusCode::PRECONDITION_FAILED, refused));
            }
            account.highest = token;
        }
        work(&mut account.balance);
        Ok(format!("{}\n", account.balance))
    }
}

/// The routes of the service.
pub fn router(accounts: Arc<Accounts>) -> Router {
    Router::new()
        .route("/accounts/{name}", get(look).put(write))
        .route("/accounts/{name}/claim", post(claim))
        .with_state(accounts)
}

/// For those who only want to know.
async fn look(State(accounts): State<Arc<Accounts>>, Path(name): Path<String>) -> Result<String, Answer> {
    let accounts = accounts.balances.lock().unwrap_or_else(PoisonError::into_inner);
    accounts.get(&name).map(|account| format!("{}\n", account.balance)).ok_or_else(unknown)
}

/// For those who write later: from here on nobody with an older token can write, so that what was read stays true.
async fn claim(
    State(accounts): State<Arc<Accounts>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<String, Answer> {
    accounts.checked(&name, &headers, |_balance| {})
}

async fn write(
    State(accounts): State<Arc<Accounts>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: String,
) -> Result<String, Answer> {
    let new = body.trim().parse().map_err(|_| (StatusCode::BAD_REQUEST, "a balance is a whole number\n".into()))?;
    accounts.checked(&name, &headers, |balance| *balance = new)
}

fn unknown() -> Answer {
    (StatusCode::NOT_FOUND, "no such account\n".into())
}

/// Whoever brings none must not get past those who do.
fn token(headers: &HeaderMap) -> Result<FencingToken, Answer> {
    let Some(value) = headers.get(TOKEN) else {
        return Err((StatusCode::PRECONDITION_REQUIRED, format!("the header {TOKEN} is missing\n")));
    };
    let is_token = |text: &&str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digits = value.to_str().ok().filter(is_token);
    let value = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
    value.map(FencingToken::new).ok_or_else(|| (StatusCode::BAD_REQUEST, "a token is 32 hexadecimal digits\n".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt;

    async fn send(app: &Router, method: &str, path: &str, token: Option<&str>, body: &str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path);
        let request = if let Some(token) = token { request.header(TOKEN, token) } else { request };
        let response = app.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        (status, String::from_utf8(to_bytes(response.into_body(), 1024).await.unwrap().to_vec()).unwrap())
    }

    fn told(value: u128) -> String {
        FencingToken::new(value).to_string()
    }

    #[tokio::test]
    async fn lower_token_is_refused_with_both_and_equal_and_higher_ones_pass() {
        let app = router(Accounts::new(true, [("42", 100)]));
        for (token, body, status) in [(5, "1", 200), (5, "2", 200), (4, "3", 412), (6, "4", 200), (5, "5", 412)] {
            let (got, answer) = send(&app, "PUT", "/accounts/42", Some(&told(token)), body).await;
            assert_eq!(got, status, "{token}: {answer}");
            let highest = told(if body == "3" { 5 } else { 6 });
            assert!(status == 200 || answer.contains(&told(token)) && answer.contains(&highest), "{answer}");
        }
        assert_eq!(send(&app, "GET", "/accounts/42", None, "").await, (200, "4\n".into()));
    }

    #[tokio::test]
    async fn claim_keeps_older_holders_from_writing_what_was_read() {
        let app = router(Accounts::new(true, [("42", 100)]));
        assert_eq!(send(&app, "POST", "/accounts/42/claim", Some(&told(6)), "").await, (200, "100\n".into()));
        assert_eq!(send(&app, "PUT", "/accounts/42", Some(&told(5)), "110").await.0, 412);
        assert_eq!(send(&app, "POST", "/accounts/42/claim", Some(&told(5)), "").await.0, 412);
        assert_eq!(send(&app, "PUT", "/accounts/42", Some(&told(6)), "130").await, (200, "130\n".into()));
    }

    #[tokio::test]
    async fn no_token_is_no_way_in_and_a_bad_one_neither() {
        let app = router(Accounts::new(true, [("42", 100)]));
        assert_eq!(send(&app, "PUT", "/accounts/42", None, "1").await.0, 428);
        for bad in ["", "7", &format!("+{}", &told(7)[1..]), &format!("{}g", &told(7)[1..]), &format!("{}0", told(7))] {
            assert_eq!(send(&app, "PUT", "/accounts/42", Some(bad), "1").await.0, 400, "{bad:?}");
        }
        assert_eq!(send(&app, "PUT", "/accounts/42", Some(&told(7)), "much").await.0, 400);
        assert_eq!(send(&app, "PUT", "/accounts/7", Some(&told(7)), "1").await.0, 404);
        assert_eq!(send(&app, "GET", "/accounts/42", None, "").await, (200, "100\n".into()));
    }

    #[tokio::test]
    async fn service_that_does_not_check_takes_everything() {
        let app = router(Accounts::new(false, [("42", 100)]));
        assert_eq!(send(&app, "POST", "/accounts/42/claim", Some(&told(6)), "").await.0, 200);
        assert_eq!(send(&app, "PUT", "/accounts/42", Some(&told(5)), "110").await, (200, "110\n".into()));
    }
}
