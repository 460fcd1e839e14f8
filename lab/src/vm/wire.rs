//! Frames on the command channel between the host and a guest (a virtio-serial port).
//!
//! A port is a bare stream of bytes that outlives the programs at its ends: a host program that is killed leaves half a frame
//! behind. So every frame begins with a magic word and names its session, a reader skips what is not a frame, and a host that gets
//! no answer sends more zeros than any frame is long before it asks again.
//!
//! Shared by `lab` (host) and `lab-guest`; no I/O of its own.

use std::io::{self, ErrorKind, Read, Write};

use serde::{Deserialize, Serialize};

/// Begins every frame.
const MAGIC: [u8; 4] = *b"KLV1";
/// Most bytes in a frame.
pub const MAX_PAYLOAD: usize = 32 * 1024;
const HEADER: usize = 4 + 4 + 1 + 4;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Host: begins a session; the payload is a [`Request`].
    Hello,
    /// Guest: the session has begun.
    Welcome,
    /// Host: bytes for the command or connection.
    Input,
    /// Host: no more of them.
    InputEnd,
    /// Guest: bytes from the command's output or the connection.
    Output,
    /// Guest: bytes from the command's error output.
    Errors,
    /// Guest: the end; the payload is the exit code (4 bytes, little endian).
    Exit,
    /// Guest: the request cannot be carried out; the payload says why.
    Refused,
    /// Guest: whatever session there was ended with the boot before. QEMU's end of the port stays open across a reset, so nothing else tells.
    Booted,
}

const KINDS: [Kind; 9] = [
    Kind::Hello,
    Kind::Welcome,
    Kind::Input,
    Kind::InputEnd,
    Kind::Output,
    Kind::Errors,
    Kind::Exit,
    Kind::Refused,
    Kind::Booted,
];

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The session, chosen by the host.
    pub session: u32,
    /// What it is.
    pub kind: Kind,
    /// At most [`MAX_PAYLOAD`] bytes.
    pub payload: Vec<u8>,
}

/// What the host wants of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Run a command.
    Run {
        /// Program and arguments.
        command: Vec<String>,
    },
    /// Connect to an address of the guest.
    Connect {
        /// `ADDRESS:PORT`.
        address: String,
    },
}

/// Writes a frame in one piece.
///
/// # Errors
/// Those of the writer.
pub fn write(to: &mut impl Write, session: u32, kind: Kind, payload: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend(MAGIC);
    bytes.extend(session.to_le_bytes());
    bytes.push(KINDS.iter().position(|known| *known == kind).unwrap_or_default() as u8);
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(payload);
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads the next frame, skipping what is none; `None` at the end of the stream.
///
/// # Errors
/// Those of the reader, but not an end within a frame.
pub fn read(from: &mut impl Read) -> io::Result<Option<Frame>> {
    let frame = loop {
        let mut window = [0; 4];
        if let Err(error) = from.read_exact(&mut window) {
            break Err(error);
        }
        match after_magic(from, window) {
            Ok(None) => {}
            Ok(Some(frame)) => break Ok(frame),
            Err(error) => break Err(error),
        }
    };
    match frame {
        Ok(frame) => Ok(Some(frame)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// The frame whose magic word begins in `window` or behind it; `None` when what follows the word is no frame.
fn after_magic(from: &mut impl Read, mut window: [u8; 4]) -> io::Result<Option<Frame>> {
    while window != MAGIC {
        window.rotate_left(1);
        from.read_exact(&mut window[3..])?;
    }
    let mut rest = [0; HEADER - 4];
    from.read_exact(&mut rest)?;
    let session = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
    let length = u32::from_le_bytes([rest[5], rest[6], rest[7], rest[8]]) as usize;
    let Some(kind) = KINDS.get(usize::from(rest[4])).copied().filter(|_| length <= MAX_PAYLOAD) else {
        return Ok(None);
    };
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    Ok(Some(Frame { session, kind, payload }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(session: u32, kind: Kind, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, session, kind, payload).unwrap();
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        for kind in KINDS {
            let frame = Frame { session: 0xdead_beef, kind, payload: b"some bytes".to_vec() };
            let all = bytes(frame.session, kind, &frame.payload);
            assert_eq!(read(&mut all.as_slice()).unwrap(), Some(frame));
        }
    }

    #[test]
    fn remains_of_another_session_and_padding_are_skipped() {
        let broken = bytes(1, Kind::Input, &[7; 1000]);
        let mut all = broken[..500].to_vec();
        all.extend(vec![0; MAX_PAYLOAD + HEADER]);
        all.extend(bytes(2, Kind::Hello, b"{}"));
        let mut from = all.as_slice();
        let first = read(&mut from).unwrap().unwrap();
        assert_eq!(first.session, 1);
        assert_eq!(read(&mut from).unwrap().map(|frame| (frame.session, frame.kind)), Some((2, Kind::Hello)));
        assert_eq!(read(&mut from).unwrap(), None);
    }

    #[test]
    fn noise_and_impossible_lengths_are_no_frames() {
        let mut all = b"KKLVnoise".to_vec();
        all.extend(MAGIC);
        all.extend([1, 0, 0, 0, 2, 255, 255, 255, 255]);
        all.extend(MAGIC);
        all.extend([1, 0, 0, 0, 99, 0, 0, 0, 0]);
        all.extend(bytes(3, Kind::Exit, &[0; 4]));
        assert_eq!(read(&mut all.as_slice()).unwrap().map(|frame| frame.session), Some(3));
    }

    #[test]
    fn an_end_within_a_frame_is_the_end() {
        let all = bytes(1, Kind::Output, b"text");
        assert_eq!(read(&mut &all[..all.len() - 1]).unwrap(), None);
        assert_eq!(read(&mut &all[..2]).unwrap(), None);
    }
}
