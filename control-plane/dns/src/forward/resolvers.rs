//! Which resolvers to ask: given ones, or those of a `resolv.conf`, read again when the file has changed.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tracing::{info, warn};

/// Port of resolvers that are named without one.
pub const PORT: u16 = 53;
/// How often the file's time is looked at, and only when somebody asks.
const LOOK: Duration = Duration::from_secs(5);

/// Where the resolvers come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// These, in this order.
    Given(Vec<SocketAddr>),
    /// The `nameserver` lines of this file.
    File(PathBuf),
}

/// The addresses in the `nameserver` lines of a `resolv.conf`; lines that cannot be read are passed over, as the C library does.
#[must_use]
pub fn parse(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().map(|line| line.split(['#', ';']).next().unwrap_or_default());
    let words = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()).flatten()
    });
    // A link-local address has its link behind a percent sign; without that it could not be reached, so it is passed over.
    words.filter_map(|word| word.parse::<IpAddr>().ok()).map(|ip| SocketAddr::new(ip, PORT)).collect()
}

struct Read {
    servers: Arc<[SocketAddr]>,
    modified: Option<SystemTime>,
    looked: Option<Instant>,
}

/// The resolvers as they are now.
pub(super) struct Resolvers {
    source: Source,
    own: Vec<SocketAddr>,
    read: Mutex<Read>,
}

impl Resolvers {
    pub(super) fn new(source: Source, own: Vec<SocketAddr>) -> Self {
        let servers = match &source {
            Source::Given(servers) => servers.iter().copied().filter(|server| !own.contains(server)).collect(),
            Source::File(_) => Arc::from([]),
        };
        Self { source, own, read: Mutex::new(Read { servers, modified: None, looked: None }) }
    }

    pub(super) fn get(&self) -> Arc<[SocketAddr]> {
        let mut read = self.read.lock();
        let Source::File(path) = &self.source else { return Arc::clone(&read.servers) };
        if read.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return Arc::clone(&read.servers);
        }
        let first = read.looked.is_none();
        read.looked = Some(Instant::now());
        // Small local files: not worth a thread.
        let modified = std::fs::metadata(path).and_then(|data| data.modified()).ok();
        if !first && modified == read.modified {
            return Arc::clone(&read.servers);
        }
        read.modified = modified;
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let (own, others): (Vec<_>, Vec<_>) = parse(&text).into_iter().partition(|s| self.own.contains(s));
                if !own.is_empty() {
                    warn!(file = %path.display(), "this server itself is named as a resolver there: left out, it would ask itself");
                }
                info!(file = %path.display(), resolvers = ?others, "names outside of the cluster are asked of");
                read.servers = others.into();
            }
            Err(error) => warn!(file = %path.display(), %error, "cannot read the resolvers, those known are kept"),
        }
        Arc::clone(&read.servers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_read_as_the_c_library_does() {
        let text = "# one\nnameserver 192.0.2.1\n search a b\nnameserver\t2001:db8::1 # two\nnameserver x\n; nameserver 192.0.2.9\noptions ndots:5\n";
        let expected: Vec<SocketAddr> = ["192.0.2.1:53", "[2001:db8::1]:53"].map(|t| t.parse().unwrap()).into();
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn this_server_is_never_asked() {
        let own = "10.96.0.10:53".parse().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("resolv.conf");
        std::fs::write(&path, "nameserver 10.96.0.10\nnameserver 192.0.2.1\n").unwrap();
        let resolvers = Resolvers::new(Source::File(path), vec![own]);
        assert_eq!(*resolvers.get(), ["192.0.2.1:53".parse().unwrap()]);
        assert!(Resolvers::new(Source::Given(vec![own]), vec![own]).get().is_empty());
    }
}
