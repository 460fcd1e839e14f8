//! URLs as Go's `url.ParseRequestURI` reads them: an absolute URI or an absolute path, without a fragment.
//!
//! Upstream counterpart: `apiserver/pkg/cel/library/urls.go` and Go's `net/url`.

use std::collections::{BTreeMap, HashMap};

use cel::ExecutionError;
use cel::common::types::{CelMap, CelMapKey, CelString, STRING_TYPE};
use cel::common::value::{CowVal, Val};

use super::{Args, Out, Registry, arg, failed, out_bool, out_text, text, text_list};
use crate::value::opaque::opaque;

/// The parts of a URL.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Url {
    scheme: String,
    /// With the port.
    host: String,
    /// As it was written.
    path: String,
    query: String,
}

opaque!(
    /// A URL.
    UrlVal(Url), URL, "kubernetes.URL"
);

pub(super) fn register(registry: &mut Registry) {
    registry.named_type(&URL);
    registry.global("url", &[&STRING_TYPE], |args| {
        let raw = text(&args, 0)?;
        let url =
            parse(raw).map_err(|error| failed(format!("URL parse error during conversion from string: {error}")))?;
        Ok(CowVal::owned(UrlVal(url)))
    });
    registry.global("isURL", &[&STRING_TYPE], |args| out_bool(parse(text(&args, 0)?).is_ok()));
    registry.member("getScheme", &URL, &[], |args| out_text(url(&args)?.scheme.as_str()));
    registry.member("getHost", &URL, &[], |args| out_text(url(&args)?.host.as_str()));
    registry.member("getHostname", &URL, &[], |args| out_text(url(&args)?.hostname()));
    registry.member("getPort", &URL, &[], |args| out_text(url(&args)?.port()));
    registry.member("getEscapedPath", &URL, &[], |args| out_text(url(&args)?.escaped_path()));
    registry.member("getQuery", &URL, &[], query);
}

fn url<'b>(args: &'b Args<'_, '_>) -> Result<&'b Url, ExecutionError> {
    arg::<UrlVal>(args, 0).map(|value| &value.0)
}

impl Url {
    fn port_at(&self) -> Option<usize> {
        let colon = self.host.rfind(':')?;
        (!self.host[colon..].contains(']')).then_some(colon)
    }

    fn hostname(&self) -> &str {
        let host = &self.host[..self.port_at().unwrap_or(self.host.len())];
        host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host)
    }

    fn port(&self) -> &str {
        self.port_at().map_or("", |colon| &self.host[colon + 1..])
    }

    /// The path as it was written, if it is written as a path may be; else with what may not stand there escaped.
    fn escaped_path(&self) -> String {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@[]/%".contains(&c);
        if self.path.bytes().all(allowed) {
            return self.path.clone();
        }
        let mut out = String::new();
        for c in unescaped(&self.path).unwrap_or_default() {
            if c.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&c) {
                out.push(char::from(c));
            } else {
                out.push_str(&format!("%{c:02X}"));
            }
        }
        out
    }
}

/// Reads a URL.
///
/// # Errors
/// In Go's words.
pub(crate) fn parse(raw: &str) -> Result<Url, String> {
    let refused = |why: String| Err(format!("parse {}: {why}", kube_common::field::go_quote(raw)));
    if raw.bytes().any(|c| c < 0x20 || c == 0x7f) {
        return refused("net/url: invalid control character in URL".to_owned());
    }
    if raw.is_empty() {
        return refused("empty url".to_owned());
    }
    let (scheme, rest) = match split_scheme(raw) {
        Ok(parts) => parts,
        Err(why) => return refused(why.to_owned()),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut url = Url { scheme: scheme.to_ascii_lowercase(), query: query.to_owned(), ..Url::default() };
    if !rest.starts_with('/') {
        // `mailto:x` is fine, and has no path.
        return if url.scheme.is_empty() { refused("invalid URI for request".to_owned()) } else { Ok(url) };
    }
    let mut path = rest;
    if let Some(after) = rest.strip_prefix("//").filter(|_| !url.scheme.is_empty()) {
        let end = after.find('/').unwrap_or(after.len());
        match host(&after[..end]) {
            Ok(host) => url.host = host,
            Err(why) => return refused(why),
        }
        path = &after[end..];
    }
    if let Err(bad) = unescaped(path) {
        return refused(format!("invalid URL escape {bad:?}"));
    }
    url.path = path.to_owned();
    Ok(url)
}

fn split_scheme(raw: &str) -> Result<(&str, &str), &'static str> {
    for (at, c) in raw.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme"),
            ':' => return Ok((&raw[..at], &raw[at + 1..])),
            _ => break,
        }
    }
    Ok(("", raw))
}

fn host(authority: &str) -> Result<String, String> {
    let host = match authority.rsplit_once('@') {
        None => authority,
        Some((user, host)) => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
            if !user.chars().all(allowed) {
                return Err("net/url: invalid userinfo".to_owned());
            }
            host
        }
    };
    let after_address = if host.starts_with('[') {
        let Some(end) = host.rfind(']') else { return Err("missing ']' in host".to_owned()) };
        &host[end + 1..]
    } else {
        host.rfind(':').map_or("", |colon| &host[colon..])
    };
    let port_is_fine = after_address
        .strip_prefix(':')
        .map_or(after_address.is_empty(), |port| port.bytes().all(|c| c.is_ascii_digit()));
    if !port_is_fine {
        return Err(format!("invalid port {after_address:?} after host"));
    }
    if let Some(bad) = host.chars().find(|c| " <>\"\\^`{|}".contains(*c)) {
        return Err(format!("invalid character {:?} in host name", bad.to_string()));
    }
    match unescaped(host) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(bad) => Err(format!("invalid URL escape {bad:?}")),
    }
}

/// The text with its `%xx` read; the bad escape otherwise.
fn unescaped(text: &str) -> Result<Vec<u8>, String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'%' {
            out.push(bytes[at]);
            at += 1;
            continue;
        }
        let digits = bytes.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits
            .filter(|digits| digits.bytes().all(|c| c.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let Some(value) = value else {
            return Err(String::from_utf8_lossy(&bytes[at..(at + 3).min(bytes.len())]).into_owned());
        };
        out.push(value);
        at += 3;
    }
    Ok(out)
}

fn query<'b, 'v>(args: Args<'b, 'v>) -> Out<'b, 'v> {
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pair in url(&args)?.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let plain =
            |part: &str| unescaped(&part.replace('+', " ")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        if let (Ok(key), Ok(value)) = (plain(key), plain(value)) {
            values.entry(key).or_default().push(value);
        }
    }
    let map: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = values
        .into_iter()
        .map(|(key, values)| {
            (CelMapKey::String(CelString::from(key)), Box::new(text_list(values)) as Box<dyn Val + 'v>)
        })
        .collect();
    Ok(CowVal::owned(CelMap::from(map)))
}
