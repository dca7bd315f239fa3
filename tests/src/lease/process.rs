//! A replica seen from the process that started it.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::Arc,
};

use lock_testkit::{Proxy, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{sync::mpsc, time::timeout};

use super::{AMPLE, Failure, replica::ARGUMENT, settings::Settings};

/// What a replica says. All times are those of [`clock`](super::clock).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The job starts.
    Leading {
        /// When.
        at: i64,
    },
    /// The job was told of a loss, or dropped without a word.
    Lost(Lost),
    /// The job has ended.
    Ended {
        /// When.
        at: i64,
        /// When it last worked.
        last_step: i64,
        /// When it was last polled.
        polled: i64,
    },
    /// The job blocks its thread.
    Blocks {
        /// From when on.
        at: i64,
    },
    /// The job goes on.
    Wakes {
        /// When.
        at: i64,
        /// Whether it could prove then that it led.
        valid: bool,
    },
    /// The runtime is gone.
    Gone {
        /// When.
        at: i64,
    },
}

impl Event {
    /// With the number of its job.
    fn parse(line: &str) -> Option<(usize, Self)> {
        let mut words = line.split(' ');
        let (job, kind) = (words.next()?.parse().ok()?, words.next()?);
        let mut time = || words.next()?.parse().ok();
        let event = match kind {
            "leading" => Self::Leading { at: time()? },
            "lost" => Self::Lost(Lost { at: time()?, deadline: time()? }),
            "ended" => Self::Ended { at: time()?, last_step: time()?, polled: time()? },
            "blocks" => Self::Blocks { at: time()? },
            "wakes" => Self::Wakes { at: time()?, valid: time()? == 1 },
            "gone" => Self::Gone { at: time()? },
            _ => return None,
        };
        Some((job, event))
    }

    /// It as what was not expected.
    #[must_use]
    pub fn unexpected(&self) -> Failure {
        format!("unexpected of a replica: {self:?}").into()
    }
}

/// A loss.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lost {
    /// When the job knew.
    pub at: i64,
    /// The deadline that it relied on.
    pub deadline: i64,
}

/// How a term ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// When the job had ended.
    pub at: i64,
    /// When it last worked.
    pub last_step: i64,
    /// When it was last polled.
    pub polled: i64,
    /// The loss, if the lease was lost.
    pub lost: Option<Lost>,
}

/// A replica in a process of its own. Dropped, it is killed.
#[derive(Debug)]
pub struct Replica {
    process: Child,
    /// `None` once they ended.
    orders: Option<ChildStdin>,
    events: mpsc::UnboundedReceiver<(usize, Event)>,
    /// Between it and the server, where it is to be disturbed.
    pub proxy: Option<Arc<Proxy>>,
}

impl Replica {
    /// Starts the program as a replica, connected through the proxy if there is one.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(program: &Path, url: &str, proxy: Option<Proxy>, settings: Settings) -> Result<Self, Failure> {
        Self::start_by(Command::new(program), url, proxy, settings)
    }

    /// The same for a program that another one starts in its own place, such as `nice`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_by(mut by: Command, url: &str, proxy: Option<Proxy>, settings: Settings) -> Result<Self, Failure> {
        let url = proxy.as_ref().map_or_else(|| url.to_owned(), |proxy| proxy.url(url));
        by.arg(ARGUMENT).arg(url).args(settings.arguments());
        let mut process = by.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = process.stdin.take();
        let output = process.stdout.take().ok_or("no standard output")?;
        let (sender, events) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                match Event::parse(&line) {
                    Some(event) => _ = sender.send(event),
                    None => eprintln!("lease: replica: {line}"),
                }
            }
        });
        Ok(Self { process, orders, events, proxy: proxy.map(Arc::new) })
    }

    /// Gives an order. See [`replica`](super::replica).
    ///
    /// # Errors
    /// If it has ended.
    pub fn order(&mut self, order: &str) -> Result<(), Failure> {
        let orders = self.orders.as_mut().ok_or("its orders have ended")?;
        Ok(writeln!(orders, "{order}")?)
    }

    /// Ends its orders, which ends it.
    pub fn end_orders(&mut self) {
        self.orders = None;
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// If it has ended.
    pub fn signal(&self, signal: Signal) -> Result<(), Failure> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }

    /// Stops it, and waits until it stands still.
    ///
    /// # Errors
    /// If it does not.
    pub async fn freeze(&self) -> Result<(), Failure> {
        self.signal(Signal::STOP)?;
        let stat = format!("/proc/{}/stat", self.process.id());
        let stopped = async || {
            let stat = std::fs::read_to_string(&stat).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        };
        Ok(wait_until(AMPLE, "the process is stopped", stopped).await?)
    }

    /// The next thing it says.
    ///
    /// # Errors
    /// If it says nothing, or has ended.
    pub async fn next(&mut self) -> Result<Event, Failure> {
        Ok(self.next_of_all().await?.1)
    }

    /// The next thing it says, with the number of its job.
    ///
    /// # Errors
    /// If it says nothing, or has ended.
    pub async fn next_of_all(&mut self) -> Result<(usize, Event), Failure> {
        let next = timeout(AMPLE, self.events.recv()).await;
        next.map_err(|_elapsed| "a replica says nothing")?.ok_or_else(|| "a replica ended".into())
    }

    /// What it said that nobody heard yet, if anything.
    pub fn said(&mut self) -> Option<Event> {
        self.events.try_recv().ok().map(|(_, event)| event)
    }

    /// When it leads, which must be the next thing it says.
    ///
    /// # Errors
    /// If it is not.
    pub async fn leads(&mut self) -> Result<i64, Failure> {
        match timeout(AMPLE, self.events.recv()).await {
            Ok(Some((_, Event::Leading { at }))) => Ok(at),
            Ok(Some((_, other))) => Err(other.unexpected()),
            Ok(None) => Err("a standby ended".into()),
            Err(_elapsed) => Err("a standby does not lead".into()),
        }
    }

    /// The end of its term, which must be the next thing it says.
    ///
    /// # Errors
    /// If it is not.
    pub async fn ends(&mut self) -> Result<Ended, Failure> {
        let (mut event, mut lost) = (self.next().await?, None);
        if let Event::Lost(loss) = event {
            lost = Some(loss);
            event = self.next().await?;
        }
        match event {
            Event::Ended { at, last_step, polled } => Ok(Ended { at, last_step, polled, lost }),
            other => Err(other.unexpected()),
        }
    }

    /// How its process ended, which must have been without another word.
    ///
    /// # Errors
    /// If it does not end.
    pub async fn exits(&mut self) -> Result<ExitStatus, Failure> {
        match timeout(AMPLE, self.events.recv()).await {
            Ok(None) => Ok(self.process.wait()?),
            Ok(Some((_, event))) => Err(event.unexpected()),
            Err(_elapsed) => Err("a replica does not end".into()),
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // Also one that is frozen; a process that has ended is no failure.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}
