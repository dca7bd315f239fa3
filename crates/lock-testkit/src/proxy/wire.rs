//! Reads along in the PostgreSQL protocol, version 3, as far as counting needs.

/// What was seen in one connection. Each direction is fed with its bytes in order, in pieces of any size.
#[derive(Debug, Default)]
pub(super) struct Wire {
    from_client: Frames,
    from_server: Frames,
    phase: Phase,
    /// Requests of the client that a `ReadyForQuery` answers, the startup not counted.
    pub(super) requests: u64,
    /// `ReadyForQuery` messages of the server, the one that ends the startup counted.
    pub(super) ready: u64,
}

/// A whole message was seen, which ended at this place of the bytes just fed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Seen {
    pub(super) message: Message,
    pub(super) end: usize,
}

/// Alphabetical.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Message {
    Cancel,
    /// From here on nothing can be read: it is encrypted, or not PostgreSQL.
    Opaque,
    /// A message of the server that is not `ReadyForQuery`.
    Other,
    Ready,
    Startup,
    /// A message of the client, by its type byte.
    Typed(u8),
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Phase {
    /// A first message has no type byte.
    #[default]
    First,
    /// The client asked for encryption; the server answers with one byte.
    Asked,
    Running,
    Opaque,
}

/// Cuts one direction into messages.
#[derive(Debug, Default)]
struct Frames {
    header: Vec<u8>,
    /// What is left of a message whose header was read.
    body: usize,
}

impl Wire {
    pub(super) fn is_opaque(&self) -> bool {
        self.phase == Phase::Opaque
    }

    pub(super) fn client_sent(&mut self, bytes: &[u8]) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let first = self.phase != Phase::Running;
            // A TLS handshake may come without having been asked for. As the length of a first message it would be absurd.
            if self.is_opaque() || (first && self.from_client.is_empty() && bytes[at] == TLS_HANDSHAKE) {
                seen.extend(self.become_opaque());
                break;
            }
            match self.from_client.next(bytes, &mut at, if first { 0 } else { 1 }) {
                Some(Ok(header)) => {
                    let message = if first { self.first_message(&header) } else { Message::Typed(header[0]) };
                    if matches!(message, Message::Typed(b'Q' | b'S' | b'F')) {
                        self.requests += 1;
                    }
                    seen.push(Seen { message, end: at });
                }
                Some(Err(BadLength)) => seen.extend(self.become_opaque()),
                None => {}
            }
        }
        seen
    }

    pub(super) fn server_sent(&mut self, bytes: &[u8]) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            match self.phase {
                Phase::Opaque => break,
                Phase::Asked if bytes[at] == b'S' || bytes[at] == b'G' => seen.extend(self.become_opaque()),
                // The client goes on without encryption.
                Phase::Asked => {
                    self.phase = Phase::First;
                    at += 1;
                }
                Phase::First | Phase::Running => match self.from_server.next(bytes, &mut at, 1) {
                    Some(Ok(header)) if header[0] == b'Z' => {
                        self.ready += 1;
                        seen.push(Seen { message: Message::Ready, end: at });
                    }
                    Some(Ok(_)) => seen.push(Seen { message: Message::Other, end: at }),
                    Some(Err(BadLength)) => seen.extend(self.become_opaque()),
                    None => {}
                },
            }
        }
        seen
    }

    fn first_message(&mut self, header: &[u8]) -> Message {
        match u32::from_be_bytes([header[4], header[5], header[6], header[7]]) {
            code @ (SSL_REQUEST | GSS_REQUEST) => {
                self.phase = Phase::Asked;
                Message::Typed(if code == SSL_REQUEST { b's' } else { b'g' })
            }
            CANCEL_REQUEST => Message::Cancel,
            _ => {
                self.phase = Phase::Running;
                Message::Startup
            }
        }
    }

    /// Says so once.
    fn become_opaque(&mut self) -> Option<Seen> {
        let was = std::mem::replace(&mut self.phase, Phase::Opaque);
        (was != Phase::Opaque).then_some(Seen { message: Message::Opaque, end: 0 })
    }
}

struct BadLength;

impl Frames {
    fn is_empty(&self) -> bool {
        self.header.is_empty()
    }

    /// Reads on to the end of a message and gives its header, or to the end of the bytes. The length is at `offset` of the
    /// header; a first message, whose length is at 0, has a code of four bytes behind it.
    fn next(&mut self, bytes: &[u8], at: &mut usize, offset: usize) -> Option<Result<Vec<u8>, BadLength>> {
        let header_len = if offset == 0 { 8 } else { 5 };
        if self.header.len() < header_len {
            let take = (header_len - self.header.len()).min(bytes.len() - *at);
            self.header.extend_from_slice(&bytes[*at..*at + take]);
            *at += take;
            if self.header.len() < header_len {
                return None;
            }
            let length = &self.header[offset..offset + 4];
            let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
            // A server takes no longer first message.
            if offset == 0 && length > 10_000 {
                return Some(Err(BadLength));
            }
            let Some(body) = (length + offset).checked_sub(header_len) else { return Some(Err(BadLength)) };
            self.body = body;
        }
        let take = self.body.min(bytes.len() - *at);
        self.body -= take;
        *at += take;
        (self.body == 0).then(|| Ok(std::mem::take(&mut self.header)))
    }
}

const TLS_HANDSHAKE: u8 = 0x16;
const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

#[cfg(test)]
mod tests {
    use super::*;

    fn first(code: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(8 + body.len()).unwrap();
        [&length.to_be_bytes()[..], &code.to_be_bytes(), body].concat()
    }

    fn typed(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(4 + body.len()).unwrap();
        [&[kind][..], &length.to_be_bytes(), body].concat()
    }

    fn messages(seen: &[Seen]) -> Vec<Message> {
        seen.iter().map(|seen| seen.message).collect()
    }

    #[test]
    fn messages_are_seen_whole_whatever_the_pieces() {
        let stream = [first(196_608, b"user\0a\0\0"), typed(b'Q', b"SELECT 1\0"), typed(b'P', b"x"), typed(b'S', b"")];
        let stream = stream.concat();
        let expected = [Message::Startup, Message::Typed(b'Q'), Message::Typed(b'P'), Message::Typed(b'S')];
        for size in 1..=stream.len() {
            let mut wire = Wire::default();
            let seen: Vec<Seen> = stream.chunks(size).flat_map(|piece| wire.client_sent(piece)).collect();
            assert_eq!(messages(&seen), expected, "in pieces of {size}");
            assert_eq!(wire.requests, 2);
        }
    }

    #[test]
    fn ready_is_counted_and_its_end_is_known() {
        let mut wire = Wire::default();
        let (other, ready) = (typed(b'D', b"row"), typed(b'Z', b"I"));
        let seen = wire.server_sent(&[&other[..], &ready, &other[..3]].concat());
        assert_eq!(messages(&seen), [Message::Other, Message::Ready]);
        assert_eq!(seen[1].end, other.len() + ready.len());
        assert_eq!(wire.ready, 1);
    }

    #[test]
    fn refused_encryption_goes_on_readable() {
        let mut wire = Wire::default();
        assert_eq!(messages(&wire.client_sent(&first(SSL_REQUEST, b""))), [Message::Typed(b's')]);
        assert_eq!(wire.server_sent(b"N"), []);
        assert_eq!(messages(&wire.client_sent(&first(196_608, b"\0"))), [Message::Startup]);
        assert_eq!(messages(&wire.server_sent(&typed(b'Z', b"I"))), [Message::Ready]);
    }

    #[test]
    fn encryption_and_strangers_are_opaque_and_said_so_once() {
        let mut agreed = Wire::default();
        agreed.client_sent(&first(SSL_REQUEST, b""));
        assert_eq!(messages(&agreed.server_sent(b"S")), [Message::Opaque]);
        assert_eq!(agreed.client_sent(&typed(b'Q', b"")), []);

        let mut direct = Wire::default();
        assert_eq!(messages(&direct.client_sent(&[TLS_HANDSHAKE, 3, 1, 2, 0, 1, 0, 1])), [Message::Opaque]);

        let mut stranger = Wire::default();
        assert_eq!(messages(&stranger.client_sent(b"GET / HTTP/1.1")), [Message::Opaque]);
        assert!(agreed.is_opaque() && direct.is_opaque() && stranger.is_opaque());
    }

    #[test]
    fn cancel_request_is_no_startup() {
        let mut wire = Wire::default();
        assert_eq!(messages(&wire.client_sent(&first(CANCEL_REQUEST, &[0; 8]))), [Message::Cancel]);
    }
}
