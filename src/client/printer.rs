//! How `tailrace consume` prints a record: by a format that is parsed once.

use std::io::Write;

use super::ClientError;
use super::records::Record;
use crate::cli::ConsumeArgs;

/// A piece of the output format.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Key,
    Value,
    Headers,
    Topic,
    Partition,
    Offset,
    Timestamp,
    KeyLength,
    ValueLength,
}

pub struct Printer<'a> {
    args: &'a ConsumeArgs,
    pieces: Vec<Piece>,
}

impl Printer<'_> {
    pub fn new(args: &ConsumeArgs) -> Result<Printer<'_>, ClientError> {
        let pieces = match (&args.format, &args.key_separator) {
            (Some(format), _) => parse_format(format)?,
            (None, Some(separator)) => vec![
                Piece::Key,
                Piece::Text(separator.clone().into_bytes()),
                Piece::Value,
                Piece::Text(b"\n".to_vec()),
            ],
            (None, None) => vec![Piece::Value, Piece::Text(b"\n".to_vec())],
        };
        Ok(Printer { args, pieces })
    }

    pub fn print(
        &self,
        out: &mut impl Write,
        partition: i32,
        record: &Record,
    ) -> std::io::Result<()> {
        let null = self.args.null.as_bytes();
        let length = |b: &Option<bytes::Bytes>| b.as_ref().map_or(-1, |b| b.len() as i64);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.write_all(text)?,
                Piece::Key => out.write_all(record.key.as_deref().unwrap_or(null))?,
                Piece::Value => out.write_all(record.value.as_deref().unwrap_or(null))?,
                Piece::Headers => {
                    for (i, (name, value)) in record.headers.iter().enumerate() {
                        if i > 0 {
                            out.write_all(b",")?;
                        }
                        out.write_all(name)?;
                        out.write_all(b"=")?;
                        out.write_all(value.as_deref().unwrap_or(null))?;
                    }
                }
                Piece::Topic => out.write_all(self.args.topic.as_bytes())?,
                Piece::Partition => write!(out, "{partition}")?,
                Piece::Offset => write!(out, "{}", record.offset)?,
                Piece::Timestamp => write!(out, "{}", record.timestamp_ms)?,
                Piece::KeyLength => write!(out, "{}", length(&record.key))?,
                Piece::ValueLength => write!(out, "{}", length(&record.value))?,
            }
        }
        Ok(())
    }
}

fn parse_format(format: &str) -> Result<Vec<Piece>, ClientError> {
    let mut pieces = Vec::new();
    let mut text = Vec::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        let piece = match c {
            '\\' => {
                match chars.next() {
                    Some('n') => text.push(b'\n'),
                    Some('r') => text.push(b'\r'),
                    Some('t') => text.push(b'\t'),
                    Some('0') => text.push(0),
                    Some('\\') => text.push(b'\\'),
                    other => return Err(unknown('\\', other)),
                }
                continue;
            }
            '%' => match chars.next() {
                Some('%') => {
                    text.push(b'%');
                    continue;
                }
                Some('k') => Piece::Key,
                Some('v' | 's') => Piece::Value,
                Some('h') => Piece::Headers,
                Some('t') => Piece::Topic,
                Some('p') => Piece::Partition,
                Some('o') => Piece::Offset,
                Some('T') => Piece::Timestamp,
                Some('K') => Piece::KeyLength,
                Some('V' | 'S') => Piece::ValueLength,
                other => return Err(unknown('%', other)),
            },
            c => {
                text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
        };
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        pieces.push(piece);
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

fn unknown(start: char, next: Option<char>) -> ClientError {
    let next = next.map(String::from).unwrap_or_default();
    ClientError::Usage(format!(
        "the format has '{start}{next}', which means nothing; see --help"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_read() {
        let text = |s: &str| Piece::Text(s.as_bytes().to_vec());
        assert_eq!(
            parse_format(r"%p:%o\t%k=%v%%\n").unwrap(),
            [
                Piece::Partition,
                text(":"),
                Piece::Offset,
                text("\t"),
                Piece::Key,
                text("="),
                Piece::Value,
                text("%\n")
            ]
        );
        assert!(parse_format("%x").is_err() && parse_format("%").is_err());
    }
}
