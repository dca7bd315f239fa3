//! What happens, and whether it is what should.

use std::fmt;
use std::time::Duration;

use examples::accounts::{Accounts, router};
use examples::fence;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::Failure;
use crate::first::{First, Lines};
use crate::place::{Place, name_of};
use crate::worker::{self, AGAIN, DEPOSITS, HOLDS, REFUSED, THINKS, WROTE};
use crate::world::World;

const START: i64 = 100;
const LIMIT: Duration = Duration::from_secs(60);

/// Who said what, and what is in the accounts at the end.
#[derive(Default)]
pub(crate) struct Story {
    told: Vec<(Who, String)>,
    /// For each place.
    balances: Vec<(String, i64)>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Who {
    First,
    Second,
}

impl Story {
    pub(crate) async fn play(world: &World, account: &str, checks: bool) -> Result<Self, Failure> {
        timeout(LIMIT, Self::default().played(world, account, checks)).await.map_err(|_| "it does not go on")?
    }

    async fn played(mut self, world: &World, account: &str, checks: bool) -> Result<Self, Failure> {
        let names = open_accounts(world, account, checks).await?;
        let places = Place::all_from(&names.iter().map(String::as_str).collect::<Vec<_>>()).await?;

        let (mut first, mut lines) = First::start(&world.locks, account, &names).await?;
        self.hear(&mut lines, Some(THINKS)).await?;
        first.freeze()?;
        println!("  -- worker 1 is frozen; its lock ends after {:?}", worker::SHORT);
        let (say, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let locker = world.locks.locker()?;
        worker::second(locker, account, &places, |line| say.send(line).unwrap_or_default()).await?;
        while let Ok(line) = heard.try_recv() {
            self.tell(Who::Second, line);
        }

        println!("  -- worker 1 wakes");
        first.wake().await?;
        self.hear(&mut lines, None).await?;
        first.ended().await?;

        for place in &places {
            let balance = place.balance(account).await?;
            println!("  -- {place} has {balance}, after {START} and deposits of {DEPOSITS:?}");
            self.balances.push((place.to_string(), balance));
        }
        Ok(self)
    }

    /// Until the first worker says this, or to its end.
    async fn hear(&mut self, lines: &mut Lines, until: Option<&str>) -> Result<(), Failure> {
        while let Some(line) = lines.recv().await {
            let is_last = Some(line.as_str()) == until;
            self.tell(Who::First, line);
            if is_last {
                return Ok(());
            }
        }
        if until.is_some() { Err("the first worker ended too early".into()) } else { Ok(()) }
    }

    fn tell(&mut self, who: Who, line: String) {
        println!("  {who}: {line}");
        self.told.push((who, line));
    }

    fn said(&self, by: Who) -> impl Iterator<Item = &str> {
        self.told.iter().filter(move |(who, _)| *who == by).map(|(_, line)| line.as_str())
    }

    /// Without a check the deposit of the second worker must be lost, or the story proves nothing.
    pub(crate) fn faults_of_careless(&self) -> Vec<String> {
        let lost = START + DEPOSITS[0];
        let kept = self.balances.iter().filter(|(_, balance)| *balance != lost);
        let kept = kept.map(|(place, balance)| format!("{place} does not check, and has {balance} instead of {lost}"));
        kept.chain(self.balances.is_empty().then(|| "there was no place".into())).collect()
    }

    pub(crate) fn faults_of_fenced(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let token = |who| self.said(who).find_map(|line| line.strip_prefix(HOLDS)).unwrap_or_default();
        let (older, newer) = (token(Who::First), token(Who::Second));
        if older.len() != 32 || older >= newer {
            faults.push(format!("the second worker's token {newer:?} is not above {older:?}"));
        }
        if self.balances.is_empty() {
            faults.push("there was no place".into());
        }
        let whole = START + DEPOSITS[0] + DEPOSITS[1];
        for (place, balance) in &self.balances {
            let refused = format!("{REFUSED}{place}: ");
            let is_refusal = |line: &str| line.starts_with(&refused) && line.contains(older) && line.contains(newer);
            let wrote = format!("to {place}");
            let is_write = |line: &str| line.starts_with(WROTE) && line.ends_with(&wrote);
            let mut stale = self.said(Who::First).take_while(|line| *line != AGAIN);
            let mut anew = self.said(Who::First).skip_while(|line| *line != AGAIN);
            if !stale.any(is_refusal) {
                faults.push(format!("{place} let a stale write through, or did not name both tokens"));
            } else if !anew.any(is_write) {
                faults.push(format!("{place} refused the newest token"));
            }
            if !self.said(Who::Second).any(is_write) {
                faults.push(format!("{place} refused a good write"));
            }
            if *balance != whole {
                faults.push(format!("{place} has {balance} instead of {whole}"));
            }
        }
        faults
    }
}

/// Opens the account in each place, and says where they are.
async fn open_accounts(world: &World, account: &str, checks: bool) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    if let Some(server) = &world.database {
        let admin = server.admin().await?;
        let table = fence::TABLE.replacen("create table", "create table if not exists", 1);
        admin.batch_execute(&table).await?;
        admin.execute("insert into accounts (name, balance) values ($1, $2)", &[&account, &START]).await?;
        names.push(name_of(checks, &server.url()));
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    names.push(format!("service={}", listener.local_addr()?));
    let service = router(Accounts::new(checks, [(account, START)]));
    // Ends with the program. A request tells whether it serves.
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(names)
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::First { "worker 1" } else { "worker 2" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story(balance: i64, told: &[(Who, &str)]) -> Story {
        let told = told.iter().map(|(who, line)| (*who, (*line).to_owned())).collect();
        Story { told, balances: vec![("the service".into(), balance)] }
    }

    fn good() -> Vec<(Who, String)> {
        let (older, newer, newest) = (format!("{:032x}", 1), format!("{:032x}", 2), format!("{:032x}", 3));
        vec![
            (Who::First, format!("{HOLDS}{older}")),
            (Who::Second, format!("{HOLDS}{newer}")),
            (Who::Second, format!("{WROTE}130 to the service")),
            (Who::First, format!("{REFUSED}the service: {older} is older than {newer}")),
            (Who::First, AGAIN.into()),
            (Who::First, format!("{HOLDS}{newest}")),
            (Who::First, format!("{WROTE}140 to the service")),
        ]
    }

    fn faults(balance: i64, told: &[(Who, String)]) -> usize {
        let told: Vec<_> = told.iter().map(|(who, line)| (*who, line.as_str())).collect();
        story(balance, &told).faults_of_fenced().len()
    }

    #[test]
    fn each_thing_that_is_missing_from_a_good_story_is_a_fault() {
        let good = good();
        assert_eq!(faults(140, &good), 0);
        assert_eq!(faults(110, &good), 1, "a lost deposit");
        for left_out in [0, 1, 2, 3, 4, 6] {
            let mut told = good.clone();
            told.remove(left_out);
            assert!(faults(140, &told) > 0, "line {left_out} is not missed");
        }
        let mut told = good.clone();
        told[1].1 = told[0].1.clone();
        assert!(faults(140, &told) > 0, "a token that did not grow");
        assert_eq!(Story::default().faults_of_fenced().len(), 2, "no token, no place");
    }

    #[test]
    fn careless_place_that_loses_nothing_is_a_fault() {
        assert_eq!(story(110, &[]).faults_of_careless(), [""; 0]);
        assert_eq!(story(140, &[]).faults_of_careless().len(), 1);
        assert_eq!(Story::default().faults_of_careless().len(), 1);
    }
}
