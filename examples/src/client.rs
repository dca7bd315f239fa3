use std::fmt;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What a server answered. Prints itself on one line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The header `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// The body, without the newline at its end.
    pub body: String,
}

/// One request without a body, on a connection of its own: just enough of a client for an example.
///
/// # Errors
/// If the connection fails or the answer is not HTTP.
pub async fn request(server: SocketAddr, method: &str, path: &str) -> io::Result<Answer> {
    request_with(server, method, path, None, "").await
}

/// The same with one header more, if there is one, and a body.
///
/// # Errors
/// If the connection fails or the answer is not HTTP.
pub async fn request_with(
    server: SocketAddr,
    method: &str,
    path: &str,
    header: Option<(&str, &str)>,
    body: &str,
) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(server).await?;
    let header = header.map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n{header}");
    stream.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    parse(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let retry_after = lines.find_map(|line| line.strip_prefix("retry-after: ")?.parse().ok());
    Some(Answer { status, retry_after, body: body.trim_end().to_owned() })
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        if let Some(seconds) = self.retry_after {
            write!(f, " (retry after {seconds} s)")?;
        }
        write!(f, " {}", self.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_read_and_noise_is_not() {
        let answer = parse("HTTP/1.1 409 Conflict\r\nretry-after: 2\r\ncontent-length: 5\r\n\r\nbusy\n").unwrap();
        assert_eq!(answer, Answer { status: 409, retry_after: Some(2), body: "busy".into() });
        assert_eq!(answer.to_string(), "409 (retry after 2 s) busy");
        for noise in ["", "HTTP/1.1 409 Conflict\r\n", "HTTP/1.1 x\r\n\r\n", "SSH-2.0\r\n\r\n"] {
            assert_eq!(parse(noise), None, "{noise:?}");
        }
    }
}
