//! The two ends of a packet as they are written on the command line.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use keelson_netfilter::nft::walk::Packet;

use super::Machine;
use crate::model::types::Protocol;

/// A port that a client could have.
const SOME_CLIENT_PORT: u16 = 40_000;

/// `ADDRESS[:PORT][/PROTOCOL]`; an IPv6 address with a port is in brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Address.
    pub addr: IpAddr,
    /// Port.
    pub port: Option<u16>,
    /// Protocol.
    pub protocol: Option<Protocol>,
}

impl FromStr for End {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ends, protocol) = match text.split_once('/') {
            None => (text, None),
            Some((ends, name)) => {
                let known = (!name.is_empty()).then(|| Protocol::parse(Some(&name.to_uppercase()))).flatten();
                (ends, Some(known.ok_or_else(|| format!("'{name}' is no protocol: tcp, udp or sctp"))?))
            }
        };
        if let Ok(addr) = ends.trim_start_matches('[').trim_end_matches(']').parse() {
            return Ok(Self { addr, port: None, protocol });
        }
        let socket: SocketAddr = ends.parse().map_err(|_| {
            format!(
                "'{ends}' is no address: write 10.96.0.10:80 or [fd00::10]:80, with /udp behind it where it is not TCP"
            )
        })?;
        Ok(Self { addr: socket.ip(), port: Some(socket.port()), protocol })
    }
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The sender; this node when none is given.
    pub from: Option<End>,
    /// The destination.
    pub to: End,
    /// Interface it comes in by; found by the route to the sender when none is given.
    pub interface: Option<String>,
}

/// Why a question cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// A port is missing.
    #[error("--to {0}: say which port, as in {0}:80")]
    NoPort(IpAddr),
    /// Families are mixed.
    #[error("--from {0} and --to {1} are of different families")]
    Families(IpAddr, IpAddr),
    /// This machine has no address that a packet to there could come from.
    #[error("this machine has no route to {0}: say with --from where the packet comes from")]
    NoRoute(IpAddr),
    /// It is not known by which interface packets from there come in.
    #[error("this machine has no route to {0}: say with --in by which interface the packet comes in")]
    NoInterface(IpAddr),
    /// The two ends name different protocols.
    #[error("--from says {}, --to says {}", .0.name(), .1.name())]
    Protocols(Protocol, Protocol),
}

impl Question {
    /// The packet that is meant.
    ///
    /// # Errors
    /// See [`QuestionError`].
    pub fn packet(&self, machine: &Machine) -> Result<Packet, QuestionError> {
        let to = self.to;
        let port = to.port.ok_or(QuestionError::NoPort(to.addr))?;
        let sender = self.from.and_then(|from| from.protocol);
        if let (Some(from), Some(to)) = (sender, to.protocol)
            && from != to
        {
            return Err(QuestionError::Protocols(from, to));
        }
        let from = match self.from {
            Some(from) => from.addr,
            None => machine.source_towards(to.addr).ok_or(QuestionError::NoRoute(to.addr))?,
        };
        if from.is_ipv4() != to.addr.is_ipv4() {
            return Err(QuestionError::Families(from, to.addr));
        }
        let own = self.interface.is_none() && machine.is_local(from);
        let interface = match &self.interface {
            Some(name) => Some(name.clone()),
            None if own => None,
            None => Some(machine.interface_towards(from).ok_or(QuestionError::NoInterface(from))?),
        };
        let source_port = self.from.and_then(|from| from.port).unwrap_or(SOME_CLIENT_PORT);
        Ok(Packet {
            interface,
            source: SocketAddr::new(from, source_port),
            destination: SocketAddr::new(to.addr, port),
            protocol: to.protocol.or(sender).unwrap_or(Protocol::Tcp) as u8,
            mark: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read() {
        let end = |text: &str| text.parse::<End>();
        let v4: IpAddr = [10, 96, 0, 10].into();
        let v6: IpAddr = "fd00::10".parse().unwrap();
        for (text, addr, port, protocol) in [
            ("10.96.0.10", v4, None, None),
            ("10.96.0.10:80", v4, Some(80), None),
            ("10.96.0.10:53/udp", v4, Some(53), Some(Protocol::Udp)),
            ("10.96.0.10/SCTP", v4, None, Some(Protocol::Sctp)),
            ("fd00::10", v6, None, None),
            ("[fd00::10]", v6, None, None),
            ("[fd00::10]:80/tcp", v6, Some(80), Some(Protocol::Tcp)),
        ] {
            assert_eq!(end(text), Ok(End { addr, port, protocol }), "{text}");
        }
        for text in
            ["", "web", "10.96.0.10:", "10.96.0.10:99999", "10.96.0.10:80/", "10.96.0.10:80/icmp", "10.96.0.300:1"]
        {
            assert!(end(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_question_that_makes_no_sense_says_what_to_do() {
        let machine = Machine::new(vec![("eth0".to_owned(), "192.168.7.2".parse().unwrap())], Vec::new());
        let ask = |from: Option<&str>, to: &str| {
            let from = from.map(|f| f.parse().unwrap());
            Question { from, to: to.parse().unwrap(), interface: None }.packet(&machine).map_err(|e| e.to_string())
        };
        let no = |text: &str| Err(text.to_owned());
        assert_eq!(ask(None, "10.96.0.1"), no("--to 10.96.0.1: say which port, as in 10.96.0.1:80"));
        assert_eq!(
            ask(Some("fd00::1"), "10.96.0.1:80"),
            no("--from fd00::1 and --to 10.96.0.1 are of different families")
        );
        assert_eq!(ask(Some("192.168.7.2/udp"), "10.96.0.1:80/tcp"), no("--from says UDP, --to says TCP"));
        assert_eq!(
            ask(Some("10.9.9.9"), "10.96.0.1:80"),
            no("this machine has no route to 10.9.9.9: say with --in by which interface the packet comes in")
        );
        let own = ask(Some("192.168.7.2"), "10.96.0.1:53/udp").unwrap();
        assert_eq!((own.interface, own.protocol, own.source.port()), (None, 17, SOME_CLIENT_PORT));
    }
}
