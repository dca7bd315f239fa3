//! The statements of `docs/fencing.md`: a table whose rows refuse a lower token. A token is bound as text, as it prints itself.

/// The column is lower than every token until the first one comes.
pub const TABLE: &str = "
    create table accounts (
        name    text   primary key,
        balance bigint not null,
        fence   uuid   not null default '00000000-0000-0000-0000-000000000000'
    )";

/// Reads a row and keeps older holders from it from here on. No row: there is none, or a newer holder was here.
pub const CLAIM: &str = "
    update accounts
       set fence = $2::text::uuid
     where name = $1 and fence <= $2::text::uuid
    returning balance";

/// Writes it. No row: as above.
pub const WRITE: &str = "
    update accounts
       set balance = $3, fence = $2::text::uuid
     where name = $1 and fence <= $2::text::uuid
    returning balance";
