//! What a lock cannot do, and what a fencing token can: a worker is frozen between its last look at the lock and its write, another takes
//! over and writes, and then the first one wakes.
//!
//! ```sh
//! cargo run -p examples --bin fenced                           # with two PostgreSQLs of its own, if that is installed
//! LOCK_TEST_PG_BIN= cargo run -p examples --bin fenced         # in memory, and without the database part
//! DATABASE_URL=postgres://user@localhost/app cargo run -p examples --bin fenced
//! ```
//!
//! The same happens twice. First to a database and an HTTP service that look at no token: what the second worker wrote is lost. Then to
//! ones that refuse a lower token than the highest they were shown. The database is never the one that has the locks.
//!
//! Exits 1 if a stale write got through or a good one was refused, and also if the places that do not check lost nothing, since then the
//! example shows nothing. With `--broken` the second places do not check either, which must be found.

mod first;
mod place;
mod story;
mod worker;
mod world;

use std::error::Error;
use std::process::ExitCode;

use tokio::io::{AsyncBufReadExt, BufReader};

use crate::place::Place;
use crate::story::Story;
use crate::world::World;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => stories(false).await,
        ["--broken"] => stories(true).await,
        // The process that is to be frozen: this very program.
        ["worker", account, ref places @ ..] => {
            let places = Place::all_from(places).await?;
            let locker = world::locker_of_this_process()?;
            let thinking = async {
                // Ends with a line, or with the program that started it.
                let _line = BufReader::new(tokio::io::stdin()).read_line(&mut String::new()).await;
            };
            worker::first(locker, account, &places, thinking, |line| println!("{line}")).await?;
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprintln!("usage: fenced [--broken]");
            Ok(ExitCode::from(2))
        }
    }
}

async fn stories(broken: bool) -> Result<ExitCode, Failure> {
    let world = tokio::task::spawn_blocking(World::choose).await??;
    println!("{world}");
    println!("\n1. Nobody looks at the token.");
    let careless = Story::play(&world, "careless", false).await?;
    println!("\n2. A token that is lower than the highest seen is refused.");
    let fenced = Story::play(&world, "fenced", !broken).await?;

    let faults: Vec<_> = careless.faults_of_careless().into_iter().chain(fenced.faults_of_fenced()).collect();
    for fault in &faults {
        eprintln!("fenced: {fault}");
    }
    if !faults.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    println!("\nwithout the check a deposit was lost; with it the stale holder was refused, and nothing was lost");
    Ok(ExitCode::SUCCESS)
}
