//! Where a password comes from, without a server.

use std::{
    fs::{self, Permissions},
    future::pending,
    io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use distributed_lock::{Error, ErrorKind};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    runtime::{self, Runtime},
    time::Instant,
};

use super::{
    super::{Connector, PasswordCallback, PasswordFile, PasswordSource},
    AMPLE,
};
use crate::logged::Log;

const CANARY: &str = "canary-2b7e";

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("password")
    }

    fn file(&self, content: impl AsRef<[u8]>, mode: u32) -> PasswordSource {
        let path = self.path();
        // Only root could write to one that was made read-only.
        let _none_yet = fs::remove_file(&path);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        from(&path)
    }
}

fn from(path: &Path) -> PasswordSource {
    PasswordSource::File(PasswordFile::new(path.to_owned()))
}

fn calling<A>(callback: impl Fn() -> A + Send + Sync + 'static) -> PasswordSource
where
    A: Future<Output = Result<String, io::Error>> + Send + 'static,
{
    PasswordSource::Callback(PasswordCallback::new(callback))
}

/// The error of a connect with this source, and that nothing came to the server before it.
async fn refused(source: PasswordSource, within: Duration) -> Error {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap().to_string();
    let string = format!("postgres://u@{address}/d").parse().unwrap();
    let connector = Connector::new(string, Some(source)).unwrap();
    let target = connector.targets.first().unwrap();
    let opened = tokio::select! {
        opened = connector.open(target, within) => opened,
        _ = server.accept() => panic!("it connects without a password"),
    };
    let failed = opened.unwrap_err();
    let text = format!("{failed} {failed:?} {connector:?}");
    assert!(!text.contains(CANARY), "{text}");
    let source = std::error::Error::source(&failed).map(ToString::to_string);
    let error = Error::from(failed);
    assert!(!format!("{error} {error:?} {error:#?}").contains(CANARY), "{error:?}");
    assert!(error.to_string().contains(&address), "{error}");
    assert_eq!(std::error::Error::source(&error).map(ToString::to_string), source);
    error
}

#[tokio::test]
async fn a_file_gives_its_bytes_without_one_newline() {
    let folder = Folder::new();
    for (content, password) in [
        (&b"s3cret"[..], &b"s3cret"[..]),
        (b"s3cret\n", b"s3cret"),
        (b"s3cret\r\n", b"s3cret"),
        (b"s3cret\n\n", b"s3cret\n"),
        (b" s3cret ", b" s3cret "),
        (b"s3\ncret", b"s3\ncret"),
        (b"\xff\xfe\n", b"\xff\xfe"),
        (&[b'x'; 65_536], &[b'x'; 65_536]),
    ] {
        assert_eq!(folder.file(content, 0o600).fetch().await.unwrap(), password);
    }
    // As secret managers do: a link to what is exchanged as a whole.
    let link = folder.0.path().join("link");
    folder.file("s3cret", 0o600);
    symlink(folder.path(), &link).unwrap();
    assert_eq!(from(&link).fetch().await.unwrap(), b"s3cret");
}

#[tokio::test]
async fn a_file_is_read_again_each_time() {
    let folder = Folder::new();
    let source = folder.file("old", 0o600);
    assert_eq!(source.fetch().await.unwrap(), b"old");
    folder.file("new", 0o600);
    assert_eq!(source.fetch().await.unwrap(), b"new");
}

#[tokio::test]
async fn a_file_that_cannot_serve_is_misconfigured_and_its_path_is_said() {
    let folder = Folder::new();
    let too_long = [CANARY.as_bytes(), &[b'x'; 65_536]].concat();
    for (content, mode, says) in [
        (&b""[..], 0o600, "empty"),
        (b"\n", 0o600, "empty"),
        (b"\r\n", 0o600, "empty"),
        (b"canary-2b7e\0", 0o600, "NUL"),
        (&too_long, 0o600, "64 KiB"),
        (CANARY.as_bytes(), 0o602, "chmod o-w"),
        (CANARY.as_bytes(), 0o666, "chmod o-w"),
    ] {
        let error = refused(folder.file(content, mode), AMPLE).await;
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("password_file {:?}", folder.path())) && text.contains(says), "{text}");
    }
    let missing = refused(from(&folder.0.path().join("absent\nx")), AMPLE).await;
    assert_eq!(missing.kind(), ErrorKind::Misconfigured);
    assert!(missing.to_string().contains(r#"absent\nx" is not there"#), "{missing}");
    let directory = refused(from(folder.0.path()), AMPLE).await;
    assert!(directory.to_string().contains("not a regular file"), "{directory}");
    // Opening a pipe would wait for one who writes.
    let pipe = folder.0.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let started = Instant::now();
    let error = refused(from(&pipe), AMPLE).await;
    assert!(started.elapsed() < AMPLE && error.to_string().contains("not a regular file"), "{error}");
}

/// The superuser may read everything unless a thread gives that right up.
#[test]
fn a_file_that_may_not_be_read_is_misconfigured_with_the_system_s_word() {
    let folder = Folder::new();
    let source = folder.file(CANARY, 0o000);
    let attempt = std::thread::spawn(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        set_capabilities(None, sets).unwrap();
        // The threads that read are started by this one.
        runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(refused(source, AMPLE))
    });
    let error = attempt.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("may not be read by this process"), "{error}");
    assert!(std::error::Error::source(&error).unwrap().is::<io::Error>(), "{error:?}");
}

#[test]
fn a_file_that_others_can_read_is_warned_of_once_and_used() {
    let folder = Folder::new();
    for (mode, warns) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true), (0o660, true), (0o644, true)] {
        let PasswordSource::File(file) = folder.file(CANARY, mode) else { panic!("a file") };
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), || {
            for _ in 0..3 {
                assert_eq!(file.clone().read_blocking().unwrap(), CANARY.as_bytes());
            }
        });
        let lines = log.lines();
        assert_eq!(lines.len(), usize::from(warns), "{mode:o}: {lines:?}");
        for line in lines {
            assert!(line.starts_with("WARN") && line.contains("chmod 600") && line.contains(&format!("{mode:o}")));
            assert!(line.contains(folder.path().to_str().unwrap()) && !line.contains(CANARY), "{line}");
        }
    }
}

#[tokio::test]
async fn the_error_of_a_callback_is_the_source_and_only_denied_stays_denied() {
    async fn no_token() -> Result<String, io::Error> {
        Err(io::Error::other("the token service is away"))
    }
    let error = refused(calling(no_token), AMPLE).await;
    assert!(error.kind() == ErrorKind::Unavailable && error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("password_callback failed"), "{error}");
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the token service is away");

    for (given, kind) in [
        (ErrorKind::Denied, ErrorKind::Denied),
        (ErrorKind::Unavailable, ErrorKind::Unavailable),
        (ErrorKind::Lost, ErrorKind::Unavailable),
    ] {
        let callback = move || async move { Err::<String, _>(Error::new(given, "the token service said no")) };
        let error = refused(PasswordSource::Callback(PasswordCallback::new(callback)), AMPLE).await;
        assert_eq!(error.kind(), kind);
        assert!(format!("{error:?}").contains("the token service said no"), "{error:?}");
    }
    for (unusable, says) in [("", "empty"), ("canary-2b7e\0", "NUL")] {
        let error = refused(calling(move || async move { Ok(unusable.to_owned()) }), AMPLE).await;
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        assert!(error.to_string().contains("password_callback") && error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn a_panic_of_a_callback_is_unavailable_and_not_repeated() {
    let before = calling(|| {
        assert!(CANARY.is_empty(), "no token for {CANARY}");
        pending()
    });
    let within = calling(|| async {
        tokio::task::yield_now().await;
        panic!("no token for {CANARY}")
    });
    for source in [before, within] {
        let error = refused(source, AMPLE).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("password_callback panicked"), "{error}");
    }
}

/// Says when it is dropped.
struct Dropped(Arc<Mutex<bool>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = true;
    }
}

#[tokio::test]
async fn a_callback_that_never_answers_is_left_within_the_time_and_dropped() {
    let is_dropped = Arc::<Mutex<bool>>::default();
    let tells = Arc::clone(&is_dropped);
    let never = calling(move || {
        let tells = Dropped(Arc::clone(&tells));
        async move {
            let _tells = tells;
            pending().await
        }
    });
    let within = Duration::from_millis(300);
    let started = Instant::now();
    let error = refused(never, within).await;
    let took = started.elapsed();
    assert!(took >= within && took < within + AMPLE / 2, "{took:?}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("no password to log in with within 300ms"), "{error}");
    let gone = lock_testkit::wait_until(AMPLE, "the callback is dropped", async || *is_dropped.lock().unwrap());
    gone.await.unwrap();
}

/// As one that waits for its token without a runtime's help.
#[test]
fn a_callback_that_blocks_its_thread_is_left_within_the_time() {
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let blocks = calling(move || {
        let blocked = Arc::clone(&blocked);
        async move {
            blocked.lock().unwrap().recv().unwrap_err();
            Err(io::Error::other("unblocked"))
        }
    });
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let error = runtime.block_on(refused(blocks, Duration::from_millis(300)));
    assert!(error.to_string().contains("within 300ms"), "{error}");
    drop(unblock);
}

#[test]
fn two_sources_are_refused_by_their_names() {
    for source in [from(Path::new("/x")), calling(pending)] {
        let name = source.name();
        let string = format!("postgres://u:{CANARY}@h/d").parse().unwrap();
        let error = Connector::new(string, Some(source)).unwrap_err().to_string();
        assert!(error.contains("in the url") && error.contains(name) && !error.contains(CANARY), "{error}");
    }
    // An empty one is none.
    Connector::new("postgres://u:@h/d".parse().unwrap(), Some(from(Path::new("/x")))).unwrap();
}

#[test]
fn a_runtime_that_ends_meanwhile_is_unavailable() {
    let runtime = Runtime::new().unwrap();
    let source = calling(pending);
    // Started there, and awaited here.
    let asked = {
        let _entered = runtime.enter();
        let mut asked = Box::pin(async move { source.fetch().await });
        let waker = std::task::Waker::noop();
        assert!(asked.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
        asked
    };
    runtime.shutdown_background();
    let here = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = here.block_on(asked).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("the runtime ended"), "{error}");
}
