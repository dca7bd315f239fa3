//! The module's own tests. Those against a real server are in the crate's `tests` folder.

mod exposure;
mod password;
mod peers;
mod socket;
mod string;
mod tls;

use std::time::Duration;

use super::{Connector, Opened};
use distributed_lock::Error;

/// Ample for a machine under load; what is tested ends long before.
const AMPLE: Duration = Duration::from_secs(10);

/// Opens a connection to the first server of the string.
async fn open(text: &str, within: Duration) -> Result<Opened, Error> {
    let connector = Connector::new(text.parse()?, None)?;
    let target = connector.targets.first().expect("a string has at least one host");
    Ok(connector.open(target, within).await?)
}
