//! How the key comes to be held.

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Way {
    /// A session of the locker's own pool.
    Session,
    /// A session of a pool that was brought.
    Borrowed,
    /// The transaction of a scoped run.
    Scoped,
    /// A lane, in a statement of its own.
    Shared,
    /// A lane, in one statement with others.
    Batch,
    /// Plain SQL, of the variants.
    Sql,
    /// Not at all, only with `--broken intruder`.
    Intruder,
}

impl Way {
    const ALL: [Self; 7] =
        [Self::Session, Self::Borrowed, Self::Scoped, Self::Shared, Self::Batch, Self::Sql, Self::Intruder];
    /// Those that must all have been granted the key, or nothing was measured.
    pub(super) const MEASURED: [Self; 5] = [Self::Session, Self::Borrowed, Self::Scoped, Self::Shared, Self::Batch];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Borrowed => "borrowed",
            Self::Scoped => "scoped",
            Self::Shared => "shared",
            Self::Batch => "batch",
            Self::Sql => "sql",
            Self::Intruder => "intruder",
        }
    }

    /// In a record.
    pub(super) fn letter(self) -> char {
        match self {
            Self::Session => 's',
            Self::Borrowed => 'p',
            Self::Scoped => 't',
            Self::Shared => 'l',
            Self::Batch => 'b',
            Self::Sql => 'q',
            Self::Intruder => 'i',
        }
    }

    pub(super) fn of_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.letter() == letter)
    }
}
