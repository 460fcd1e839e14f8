//! Tokens that are no service account's: those of a file, and bootstrap tokens, with which a machine asks for its first certificate.
//!
//! Upstream counterparts: `--token-auth-file` (`authentication/token/tokenfile`) and `plugin/pkg/auth/authenticator/token/bootstrap`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use keelson_kinds::lookup;
use ring::digest::{SHA256, digest};
use serde_json::Value;

use super::{AUTHENTICATED, User};
use crate::cache::Hub;

/// Where bootstrap tokens are kept, and as what.
const NAMESPACE: &str = "kube-system";
const SECRET_PREFIX: &str = "bootstrap-token-";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// Users of bootstrap tokens are this and the token's id.
const USER_PREFIX: &str = "system:bootstrap:";
/// Group of all of them, and what further groups begin with.
const BOOTSTRAPPERS: &str = "system:bootstrappers";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
/// Upstream's bound on a group after its prefix.
const MAX_GROUP: usize = 256;

/// A token file that cannot be used. Not retryable without a change of the file.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It cannot be read.
    #[error("cannot read the token file {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is wrong. The line itself is not told: it holds a secret.
    #[error("line {line} of the token file {path}: {why}; a line is TOKEN,USER,UID or TOKEN,USER,UID,\"GROUP,GROUP\"", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        why: &'static str,
    },
}

/// Tokens of a file, by their SHA-256, so that none of them can be told from memory or by the time that a comparison takes.
#[derive(Clone, Default)]
pub struct StaticTokens(Arc<HashMap<Vec<u8>, User>>);

impl std::fmt::Debug for StaticTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StaticTokens({})", self.0.len())
    }
}

fn hash(token: &[u8]) -> Vec<u8> {
    digest(&SHA256, token).as_ref().to_vec()
}

impl StaticTokens {
    /// Reads a file, once: a new start reads it again, as upstream.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub fn read(path: &Path) -> Result<Self, TokenFileError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| TokenFileError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|(line, why)| TokenFileError::Line { path: path.to_owned(), line, why })
    }

    fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut all = HashMap::new();
        for (at, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why| (at + 1, why);
            let fields = fields(line).ok_or_else(|| wrong("a quotation mark is not closed"))?;
            let [token, name, uid, rest @ ..] = fields.as_slice() else {
                return Err(wrong("there are too few fields"));
            };
            if rest.len() > 1 {
                return Err(wrong("there are too many fields: several groups go between quotation marks"));
            }
            if token.is_empty() || name.is_empty() {
                return Err(wrong("the token or the user is empty"));
            }
            let given =
                rest.iter().flat_map(|groups| groups.split(',')).map(str::trim).filter(|group| !group.is_empty());
            let groups = given.chain([AUTHENTICATED]).map(ToOwned::to_owned).collect();
            let user = User { name: name.clone(), uid: uid.clone(), groups, ..User::default() };
            if all.insert(hash(token.as_bytes()), user).is_some() {
                return Err(wrong("this token stands in an earlier line"));
            }
        }
        Ok(Self(Arc::new(all)))
    }

    /// The user of a token.
    #[must_use]
    pub fn user(&self, token: &str) -> Option<User> {
        if self.0.is_empty() { None } else { self.0.get(&hash(token.as_bytes())).cloned() }
    }
}

/// The fields of a line of comma separated values; a quotation mark within quotation marks is doubled.
fn fields(line: &str) -> Option<Vec<String>> {
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.trim_end().chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            // Upstream's reader leaves leading space out.
            ' ' if field.is_empty() && !quoted => {}
            letter => field.push(letter),
        }
    }
    fields.push(field);
    (!quoted).then_some(fields)
}

/// Whether a token has the form of a bootstrap token: nothing else is looked for in that case.
#[must_use]
pub fn bootstrap_parts(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let good = |text: &str, length| {
        text.len() == length && text.bytes().all(|letter| letter.is_ascii_digit() || letter.is_ascii_lowercase())
    };
    (good(id, ID_LENGTH) && good(secret, SECRET_LENGTH)).then_some((id, secret))
}

/// The user of a bootstrap token, if its Secret is there, says the same, has not expired and is for authentication.
#[must_use]
pub fn bootstrap_user(hub: &Arc<Hub>, id: &str, secret: &str, now: jiff::Timestamp) -> Option<User> {
    let secrets = lookup("", "v1", "secrets")?;
    let object = hub.cache(secrets)?.get(&secrets.key(NAMESPACE, &format!("{SECRET_PREFIX}{id}")))?;
    user_of(&object.value(), id, secret, now)
}

fn user_of(object: &Value, id: &str, secret: &str, now: jiff::Timestamp) -> Option<User> {
    let data = |key: &str| {
        let bytes = STANDARD.decode(object["data"][key].as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    let refused = |why: &'static str| {
        // For the administrator who wonders; the token itself is in no log.
        tracing::info!(secret = %format!("{NAMESPACE}/{SECRET_PREFIX}{id}"), why, "a bootstrap token was refused");
        None
    };
    if object["type"] != SECRET_TYPE || !object["metadata"]["deletionTimestamp"].is_null() {
        return refused("the Secret is of another type, or goes");
    }
    if data("token-id").as_deref() != Some(id) {
        return refused("its token-id is another");
    }
    if data("token-secret").is_none_or(|known| hash(known.as_bytes()) != hash(secret.as_bytes())) {
        return refused("its token-secret is another");
    }
    if let Some(until) = data("expiration") {
        match until.parse::<jiff::Timestamp>() {
            Ok(until) if now < until => {}
            Ok(_) => return refused("it has expired"),
            Err(_) => return refused("its expiration is no time"),
        }
    }
    if data("usage-bootstrap-authentication").as_deref() != Some("true") {
        return refused("it is not for authentication");
    }
    let mut groups = vec![BOOTSTRAPPERS.to_owned()];
    for group in data("auth-extra-groups").iter().flat_map(|groups| groups.split(',')).filter(|group| !group.is_empty())
    {
        if !is_group(group) {
            return refused("an auth-extra-groups does not begin with system:bootstrappers: or has wrong letters");
        }
        groups.push(group.to_owned());
    }
    groups.push(AUTHENTICATED.to_owned());
    Some(User { name: format!("{USER_PREFIX}{id}"), groups, ..User::default() })
}

/// Upstream's rule: `system:bootstrappers:` and small letters, digits, `:` and `-`, at the end neither of the latter.
fn is_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix(BOOTSTRAPPERS).and_then(|rest| rest.strip_prefix(':')) else { return false };
    let plain = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let ends_well = rest.bytes().next_back().is_some_and(plain);
    ends_well && rest.len() <= MAX_GROUP && rest.bytes().all(|letter| plain(letter) || letter == b':' || letter == b'-')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_of_a_token_file() {
        let text = "# words\n\nt1,alice,u1\nt2,bob,u2,\"dev,ops\"\nt3, carol ,,one\n\"t,4\",\"d \"\"x\"\"\",u4,\n";
        let tokens = StaticTokens::parse(text).unwrap();
        let of = |token: &str| tokens.user(token).map(|user| (user.name, user.uid, user.groups.join(" ")));
        let known = |name: &str, uid: &str, groups: &str| Some((name.to_owned(), uid.to_owned(), groups.to_owned()));
        assert_eq!(of("t1"), known("alice", "u1", AUTHENTICATED));
        assert_eq!(of("t2"), known("bob", "u2", "dev ops system:authenticated"));
        assert_eq!(of("t3"), known("carol ", "", "one system:authenticated"));
        assert_eq!(of("t,4"), known("d \"x\"", "u4", AUTHENTICATED));
        assert_eq!(of("t"), None);
        assert_eq!(of(""), None);
        assert!(!format!("{tokens:?}").contains("t1"));
    }

    #[test]
    fn wrong_lines_are_told_by_number_only() {
        let wrong = |text: &str| StaticTokens::parse(text).unwrap_err();
        assert_eq!(wrong("a,b,c\nsecret,b").0, 2);
        assert_eq!(wrong("a,b,c,d,e").1, "there are too many fields: several groups go between quotation marks");
        assert_eq!(wrong(",b,c").1, "the token or the user is empty");
        assert_eq!(wrong("a,b,c,\"d").1, "a quotation mark is not closed");
        assert_eq!(wrong("a,b,c\na,d,e").1, "this token stands in an earlier line");
    }

    #[test]
    fn forms_of_bootstrap_tokens() {
        assert_eq!(bootstrap_parts("abcdef.0123456789abcdef"), Some(("abcdef", "0123456789abcdef")));
        for other in
            ["abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "abcdef0123456789abcdef", "a.b", "", "aaa.bbb.ccc"]
        {
            assert_eq!(bootstrap_parts(other), None, "{other}");
        }
    }

    fn secret(more: &[(&str, &str)]) -> Value {
        let mut data = json!({});
        let own =
            [("token-id", "abcdef"), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-authentication", "true")];
        for (key, value) in own.iter().chain(more) {
            data[*key] = json!(STANDARD.encode(value));
        }
        json!({ "type": SECRET_TYPE, "metadata": { "name": "bootstrap-token-abcdef" }, "data": data })
    }

    #[test]
    fn what_a_bootstrap_token_must_be() {
        let now: jiff::Timestamp = "2026-12-01T00:00:00Z".parse().unwrap();
        let ask = |object: &Value| user_of(object, "abcdef", "0123456789abcdef", now);
        let user = ask(&secret(&[])).unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups.join(" ")),
            ("system:bootstrap:abcdef", "system:bootstrappers system:authenticated".to_owned())
        );
        let later = [
            ("expiration", "2026-12-01T00:00:01Z"),
            ("auth-extra-groups", "system:bootstrappers:kubeadm:x,system:bootstrappers:a"),
        ];
        assert_eq!(ask(&secret(&later)).unwrap().groups.len(), 4);
        for wrong in [
            ("expiration", "2026-12-01T00:00:00Z"),
            ("expiration", "soon"),
            ("usage-bootstrap-authentication", "false"),
            ("token-id", "other0"),
            ("token-secret", "0123456789abcdee"),
            ("auth-extra-groups", "system:masters"),
            ("auth-extra-groups", "system:bootstrappers:"),
            ("auth-extra-groups", "system:bootstrappers:a,system:bootstrappers:b-"),
        ] {
            assert_eq!(ask(&secret(&[wrong])), None, "{wrong:?}");
        }
        let mut going = secret(&[]);
        going["metadata"]["deletionTimestamp"] = json!("2026-12-01T00:00:00Z");
        assert_eq!(ask(&going), None);
        let mut other = secret(&[]);
        other["type"] = json!("Opaque");
        assert_eq!(ask(&other), None);
    }
}
