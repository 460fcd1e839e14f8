//! `resolvConf`: a resolver file into the result.

use std::fs;
use std::path::Path;

use super::HostLocalError;
use crate::types::Dns;

/// Reads a file in the format of resolv.conf(5).
pub fn read(path: &Path) -> Result<Dns, HostLocalError> {
    let text =
        fs::read_to_string(path).map_err(|source| HostLocalError::ResolvConf { path: path.to_owned(), source })?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim) {
        if line.starts_with(['#', ';']) {
            continue;
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("nameserver") => dns.nameservers.extend(words.next()),
            Some("domain") => dns.domain = words.next().unwrap_or_default(),
            Some("search") => dns.search.extend(words),
            Some("options") => dns.options.extend(words),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn reads_what_the_resolver_reads() {
        let dns =
            parse("# comment\nnameserver 10.0.0.1\nnameserver fd00::1\nsearch a b\ndomain c\noptions ndots:5\nodd\n");
        assert_eq!(dns.nameservers, ["10.0.0.1", "fd00::1"]);
        assert_eq!(dns.search, ["a", "b"]);
        assert_eq!(dns.domain, "c");
        assert_eq!(dns.options, ["ndots:5"]);
    }
}
