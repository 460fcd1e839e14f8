//! kubectl's way to the API server: an HTTP proxy on this host, for as long as the command lives.
//!
//! kubectl keeps what it has learnt of a server (groups of the API, their schemas) under the server's name. Through a proxy that is the address
//! that guests know, always the same one; a port of this host would be another one with each command, or one that was another cluster's before.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;

use super::channel::{self, ANSWER_LIMIT, Session};
use super::wire::Request;

/// Longest head of a request.
const HEAD_LIMIT: u64 = 16 << 10;
/// The API server as its own machine sees it.
const INSIDE: &str = "127.0.0.1:6443";

/// Answers as long as this process lives: `api` (ADDRESS:PORT) is in the guest of this folder, everything else is connected to from this host.
pub fn serve(listener: TcpListener, folder: &Path, api: &str) {
    let (folder, api) = (folder.to_path_buf(), api.to_owned());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (folder, api) = (folder.clone(), api.clone());
            // A client whose tunnel fails sees the connection end.
            std::thread::spawn(move || tunnel(stream, &folder, &api));
        }
    });
}

fn tunnel(mut stream: TcpStream, folder: &Path, api: &str) -> io::Result<()> {
    let Some(target) = target(BufReader::new(&stream))? else {
        return stream.write_all(b"HTTP/1.1 405 Only CONNECT\r\n\r\n");
    };
    if target == api {
        let request = Request::Connect { address: INSIDE.to_owned() };
        let Ok(session) = Session::open(folder, &request, ANSWER_LIMIT) else {
            return stream.write_all(b"HTTP/1.1 504 The machine does not answer\r\n\r\n");
        };
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
        return channel::splice(session, stream);
    }
    let other = match TcpStream::connect(&target) {
        Ok(other) => other,
        Err(error) => return stream.write_all(format!("HTTP/1.1 502 {error}\r\n\r\n").as_bytes()),
    };
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut from, mut to) = (stream.try_clone()?, other.try_clone()?);
    std::thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    io::copy(&mut &other, &mut stream)?;
    stream.shutdown(Shutdown::Both)
}

/// The address that a CONNECT asks for; nothing if it is another request. What follows the head comes only after the answer.
fn target(reader: impl io::BufRead) -> io::Result<Option<String>> {
    let mut lines = reader.take(HEAD_LIMIT).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    for line in lines {
        if line?.is_empty() {
            let mut words = first.split_ascii_whitespace();
            return Ok(if words.next() == Some("CONNECT") { words.next().map(ToOwned::to_owned) } else { None });
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_connect_is_read_to_the_end_of_its_head() {
        let head = "CONNECT 10.90.1.10:6443 HTTP/1.1\r\nHost: 10.90.1.10:6443\r\n\r\nrest";
        let mut reader = BufReader::new(head.as_bytes());
        assert_eq!(target(&mut reader).unwrap().as_deref(), Some("10.90.1.10:6443"));
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "rest");
        assert_eq!(target("GET / HTTP/1.1\r\n\r\n".as_bytes()).unwrap(), None);
        assert!(target("CONNECT 10.90.1.10:6443 HTTP/1.1\r\n".as_bytes()).is_err());
    }

    #[test]
    fn what_is_not_the_api_server_is_connected_from_here() {
        let (proxy, other) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let (there, address) = (proxy.local_addr().unwrap(), other.local_addr().unwrap());
        serve(proxy, Path::new("/nonexistent"), "10.90.1.10:6443");
        let mut client = TcpStream::connect(there).unwrap();
        write!(client, "CONNECT {address} HTTP/1.1\r\n\r\n").unwrap();
        let (mut accepted, _) = other.accept().unwrap();
        accepted.write_all(b"hello").unwrap();
        drop(accepted);
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        assert_eq!(said, "HTTP/1.1 200 OK\r\n\r\nhello");
    }
}
