//! What happened to the key, in order, as those who held it wrote it down.
//!
//! All processes append to one file. A record is 64 bytes, so that it lies in one page of the file and is written whole or not at all,
//! also by a process that is killed meanwhile. Nothing is synced: the file outlives processes, and the machine does not crash.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
};

use super::{Failure, way::Way};

const LENGTH: usize = 64;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Mark {
    /// The grant was answered.
    Granted,
    /// The key is given back from now on.
    Ending,
    /// The server had still held the key for this holder when it was given back. Missing after a loss or a kill.
    Released,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Record {
    pub(super) mark: Mark,
    pub(super) hold: Hold,
}

/// One hold, the same in each of its records.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Hold {
    /// Nobody else's.
    pub(super) id: u64,
    pub(super) way: Way,
    /// How many records there were when the key was asked for.
    pub(super) asked: usize,
    pub(super) token: u128,
}

impl Mark {
    const ALL: [Self; 3] = [Self::Granted, Self::Ending, Self::Released];

    fn letter(self) -> char {
        match self {
            Self::Granted => 'G',
            Self::Ending => 'E',
            Self::Released => 'R',
        }
    }
}

impl Record {
    fn to_line(self) -> String {
        let Self { mark, hold: Hold { id, way, asked, token } } = self;
        format!("{}{} {id:016x} {asked:010x} {token:032x}\n", mark.letter(), way.letter())
    }

    fn of_line(line: &str) -> Option<Self> {
        let [letters, id, asked, token] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        let mut letters = letters.chars();
        let mark = letters.next()?;
        let mark = Mark::ALL.into_iter().find(|known| known.letter() == mark)?;
        let way = Way::of_letter(letters.next()?)?;
        let id = u64::from_str_radix(id, 16).ok()?;
        let asked = usize::from_str_radix(asked, 16).ok()?;
        let token = u128::from_str_radix(token, 16).ok()?;
        Some(Self { mark, hold: Hold { id, way, asked, token } })
    }
}

/// The file, to be written.
#[derive(Debug)]
pub(super) struct Witness(File);

impl Witness {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(OpenOptions::new().append(true).create(true).open(path)?))
    }

    /// How many records there are.
    pub(super) fn count(&self) -> io::Result<usize> {
        Ok(usize::try_from(self.0.metadata()?.len()).map_err(io::Error::other)? / LENGTH)
    }

    pub(super) fn note(&self, mark: Mark, hold: Hold) -> io::Result<()> {
        let line = Record { mark, hold }.to_line();
        // In one call, which a second one for what is left would not be.
        match (&self.0).write(line.as_bytes())? {
            LENGTH => Ok(()),
            written => Err(io::Error::other(format!("{written} bytes of the record {line:?} were written"))),
        }
    }
}

/// The file, as it is read while others write.
#[derive(Debug)]
pub(super) struct Reader {
    file: File,
    begun: String,
    pub(super) records: Vec<Record>,
    pub(super) grants: usize,
}

impl Reader {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, begun: String::new(), records: Vec::new(), grants: 0 })
    }

    /// Reads what is new.
    pub(super) fn catch_up(&mut self) -> Result<(), Failure> {
        self.file.read_to_string(&mut self.begun)?;
        let whole = self.begun.len() / LENGTH * LENGTH;
        for line in self.begun[..whole].split_inclusive('\n') {
            let record = line.strip_suffix('\n').and_then(Record::of_line);
            let record = record.filter(|_| line.len() == LENGTH).ok_or_else(|| format!("no record: {line:?}"))?;
            self.grants += usize::from(record.mark == Mark::Granted);
            self.records.push(record);
        }
        self.begun.drain(..whole);
        Ok(())
    }

    /// Reads the rest, after which nothing is written any more.
    pub(super) fn finish(mut self) -> Result<Vec<Record>, Failure> {
        self.catch_up()?;
        if self.begun.is_empty() { Ok(self.records) } else { Err(format!("half a record: {:?}", self.begun).into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written_and_are_of_one_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("witness");
        let witness = Witness::open(&path).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        let holds = [
            Hold { id: 0, way: Way::Session, asked: 0, token: 0 },
            Hold { id: u64::MAX, way: Way::Batch, asked: 0xff_ffff_ffff, token: u128::MAX },
        ];
        let mut written = Vec::new();
        for hold in holds {
            for mark in Mark::ALL {
                assert_eq!(witness.count().unwrap(), written.len());
                witness.note(mark, hold).unwrap();
                written.push(Record { mark, hold });
                reader.catch_up().unwrap();
                assert_eq!(reader.records, written);
            }
        }
        assert_eq!(reader.grants, 2);
        assert_eq!(reader.finish().unwrap(), written);
    }

    #[test]
    fn half_a_record_and_what_is_none_are_refused() {
        for text in ["Gs 0000", &format!("{}\n", "x".repeat(LENGTH - 1))] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("witness");
            std::fs::write(&path, text).unwrap();
            assert!(Reader::open(&path).unwrap().finish().is_err(), "{text:?}");
        }
    }
}
