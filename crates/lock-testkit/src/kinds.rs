use distributed_lock::ErrorKind;

/// Every kind of error, for tables that must answer for each.
pub const ERROR_KINDS: [ErrorKind; 14] = [
    ErrorKind::AlreadyRunning,
    ErrorKind::CircuitOpen,
    ErrorKind::Closed,
    ErrorKind::Contended,
    ErrorKind::Deadlock,
    ErrorKind::Denied,
    ErrorKind::Indeterminate,
    ErrorKind::InvalidInput,
    ErrorKind::LimitReached,
    ErrorKind::Lost,
    ErrorKind::Misconfigured,
    ErrorKind::Other,
    ErrorKind::Unavailable,
    ErrorKind::Unsupported,
];
