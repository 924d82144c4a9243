//! The lines of standard input, numbered from 1, read ahead by a thread of their own, so that a batch can be sent while the next line isn't there yet.
//!
//! Bounds: a line has at most [`LINE_BYTES`]; [`CHUNKS_AHEAD`] chunks of up to [`CHUNK_BYTES`] and one line are read ahead.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;

use super::ClientError;

/// Longest line, in bytes: more than any broker takes in one request.
const LINE_BYTES: usize = 100 << 20;
/// Lines cross to the sender in chunks, which costs less than one by one. A chunk ends where the input would make us wait.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNKS_AHEAD: usize = 16;

/// Lines without their line feeds, or why there are no more.
pub type Chunk = Result<Vec<Bytes>, ClientError>;

pub fn read_lines() -> Receiver<Chunk> {
    let (to, from) = sync_channel(CHUNKS_AHEAD);
    std::thread::spawn(move || read(std::io::stdin().lock(), &to));
    from
}

/// Reads to the end; gives up when nobody takes the lines any more.
fn read(input: impl Read, to: &SyncSender<Chunk>) {
    let mut input = BufReader::with_capacity(1 << 20, input);
    let (mut lines, mut bytes, mut number) = (Vec::new(), 0, 0_u64);
    loop {
        number += 1;
        let mut line = Vec::new();
        let read = (&mut input)
            .take(LINE_BYTES as u64 + 1)
            .read_until(b'\n', &mut line);
        let problem = match read {
            Ok(0) => {
                let _ = to.send(Ok(lines));
                return;
            }
            Ok(_) if line.len() > LINE_BYTES => {
                format!(
                    "line {number} is longer than {LINE_BYTES} bytes, which no broker takes in one request: split it"
                )
            }
            Ok(_) => {
                if line.last() == Some(&b'\n') {
                    line.pop();
                }
                bytes += line.len();
                lines.push(Bytes::from(line));
                if bytes >= CHUNK_BYTES || !input.buffer().contains(&b'\n') {
                    if to.send(Ok(std::mem::take(&mut lines))).is_err() {
                        return;
                    }
                    bytes = 0;
                }
                continue;
            }
            Err(e) => format!("can't read standard input: {e}; it must be a file or a pipe"),
        };
        // What was read before it counts.
        let _ = to.send(Ok(lines));
        let _ = to.send(Err(ClientError::Usage(problem)));
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(input: impl Read) -> (Vec<Bytes>, Option<ClientError>) {
        let (to, from) = sync_channel(1 << 20);
        read(input, &to);
        drop(to);
        let (mut lines, mut error) = (Vec::new(), None);
        for chunk in from {
            match chunk {
                Ok(some) => lines.extend(some),
                Err(e) => error = Some(e),
            }
        }
        (lines, error)
    }

    #[test]
    fn every_line_comes_once_in_order() {
        let text: String = (0..100_000).map(|n| format!("{n}\n")).collect();
        let (lines, error) = lines_of(text.as_bytes());
        assert!(error.is_none());
        assert_eq!(lines.len(), 100_000);
        assert!(lines.iter().enumerate().all(|(n, l)| *l == n.to_string()));
        assert_eq!(lines_of(&b"a\n\nb"[..]).0, ["a", "", "b"]);
        assert!(lines_of(&b""[..]).0.is_empty());
    }

    #[test]
    fn what_was_read_before_an_error_is_kept() {
        struct Breaks(bool);
        impl Read for Breaks {
            fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
                if std::mem::replace(&mut self.0, true) {
                    return Err(std::io::Error::other("gone"));
                }
                to[..4].copy_from_slice(b"a\nb\n");
                Ok(4)
            }
        }
        let (lines, error) = lines_of(Breaks(false));
        assert_eq!(lines, ["a", "b"]);
        assert!(error.unwrap().to_string().contains("gone"));
    }

    #[test]
    fn a_line_that_never_ends_is_refused() {
        let (lines, error) = lines_of(b"x\n".chain(std::io::repeat(b'y')));
        assert_eq!(lines, ["x"]);
        assert!(error.unwrap().to_string().contains("longer than"));
    }
}
