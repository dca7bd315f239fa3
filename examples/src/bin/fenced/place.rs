//! Where the balances are: in a table, and behind an HTTP service. Neither knows anything of the lock but the token.

use std::fmt;
use std::net::SocketAddr;

use distributed_lock::FencingToken;
use examples::accounts::TOKEN;
use examples::{fence, request, request_with};
use tokio_postgres::{Client, NoTls};

use crate::Failure;

pub(crate) enum Place {
    /// The table of `docs/fencing.md`.
    Table(Client),
    /// The same table, by statements that do not look at the column.
    CarelessTable(Client),
    /// Whether it looks at the token is up to the service.
    Service(SocketAddr),
}

/// What came of a request.
pub(crate) enum Answer {
    Balance(i64),
    Refused(String),
}

impl Place {
    /// The places that an argument each names, as [`name_of`] made it.
    pub(crate) async fn all_from(names: &[&str]) -> Result<Vec<Self>, Failure> {
        let mut places = Vec::new();
        for name in names {
            places.push(match name.split_once('=') {
                Some(("service", address)) => Self::Service(address.parse()?),
                Some(("table", url)) => Self::Table(connect(url).await?),
                Some(("careless-table", url)) => Self::CarelessTable(connect(url).await?),
                _ => return Err(format!("{name:?} is no place").into()),
            });
        }
        Ok(places)
    }

    /// The balance. A place that checks takes no older token from here on.
    pub(crate) async fn read(&self, account: &str, token: FencingToken) -> Result<Answer, Failure> {
        match self {
            Self::Table(client) => {
                // As text: the driver needs no feature for it, and the server makes a uuid of 32 hexadecimal digits.
                let row = client.query_opt(fence::CLAIM, &[&account, &token.to_string()]).await?;
                claimed(client, account, token, row.map(|row| row.get(0))).await
            }
            Self::CarelessTable(_) => Ok(Answer::Balance(self.balance(account).await?)),
            Self::Service(address) => send(*address, "POST", &format!("/accounts/{account}/claim"), token, "").await,
        }
    }

    pub(crate) async fn write(&self, account: &str, balance: i64, token: FencingToken) -> Result<Answer, Failure> {
        match self {
            Self::Table(client) => {
                let row = client.query_opt(fence::WRITE, &[&account, &token.to_string(), &balance]).await?;
                claimed(client, account, token, row.map(|row| row.get(0))).await
            }
            Self::CarelessTable(client) => {
                let sql = "update accounts set balance = $2 where name = $1 returning balance";
                Ok(Answer::Balance(client.query_one(sql, &[&account, &balance]).await?.get(0)))
            }
            Self::Service(address) => {
                send(*address, "PUT", &format!("/accounts/{account}"), token, &balance.to_string()).await
            }
        }
    }

    /// As somebody sees it who only wants to know.
    pub(crate) async fn balance(&self, account: &str) -> Result<i64, Failure> {
        match self {
            Self::Table(client) | Self::CarelessTable(client) => {
                let sql = "select balance from accounts where name = $1";
                Ok(client.query_one(sql, &[&account]).await?.get(0))
            }
            Self::Service(address) => {
                Ok(request(*address, "GET", &format!("/accounts/{account}")).await?.body.parse()?)
            }
        }
    }
}

/// For the arguments of the process that is to be frozen.
pub(crate) fn name_of(checks: bool, url: &str) -> String {
    format!("{}={url}", if checks { "table" } else { "careless-table" })
}

async fn connect(url: &str) -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Ends with the client. What ends it early is seen by the next statement.
    tokio::spawn(connection);
    Ok(client)
}

/// What the rows of a checked statement mean: none is a refusal, if there is such an account at all.
async fn claimed(client: &Client, account: &str, token: FencingToken, balance: Option<i64>) -> Result<Answer, Failure> {
    if let Some(balance) = balance {
        return Ok(Answer::Balance(balance));
    }
    let row = client.query_opt("select fence::text from accounts where name = $1", &[&account]).await?;
    let highest: String = row.ok_or("no such account")?.get(0);
    let highest = highest.replace('-', "");
    Ok(Answer::Refused(format!("0 rows updated: token {token} is older than {highest}, the highest seen")))
}

async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: FencingToken,
    body: &str,
) -> Result<Answer, Failure> {
    let answer = request_with(address, method, path, Some((TOKEN, &token.to_string())), body).await?;
    match answer.status {
        200 => Ok(Answer::Balance(answer.body.parse()?)),
        412 => Ok(Answer::Refused(answer.to_string())),
        _ => Err(answer.to_string().into()),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Table(_) | Self::CarelessTable(_) => "the database",
            Self::Service(_) => "the service",
        })
    }
}
