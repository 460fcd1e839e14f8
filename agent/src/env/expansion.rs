//! `$(VAR)` references in values, commands, arguments and `subPathExpr`.
//!
//! Rules (upstream's `expansion` package): `$(NAME)` is replaced when NAME is known and left as it
//! stands when it is not; `$$` is a literal `$`; an unclosed `$(` and any other `$x` stay as they are.
//! A replaced value is never expanded again.

/// Expands every reference in `input`; `lookup` answers the value of a variable or `None`.
pub fn expand<'a>(input: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        rest = match tail.as_bytes().first() {
            None => {
                out.push('$');
                ""
            }
            Some(b'$') => {
                out.push('$');
                &tail[1..]
            }
            Some(b'(') => match tail.find(')') {
                Some(close) => {
                    let name = &tail[1..close];
                    match lookup(name) {
                        Some(value) => out.push_str(value),
                        None => {
                            out.push_str("$(");
                            out.push_str(name);
                            out.push(')');
                        }
                    }
                    &tail[close + 1..]
                }
                None => {
                    out.push_str("$(");
                    &tail[1..]
                }
            },
            // Any other character after `$` is copied by the next round; it cannot be a `$`.
            Some(_) => {
                out.push('$');
                tail
            }
        };
    }
    out.push_str(rest);
    out
}

/// Like [`expand`], but a reference to an unknown variable is an error naming it (for `subPathExpr`).
///
/// # Errors
/// The name of the first variable that has no value.
pub fn expand_strict<'a>(input: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> Result<String, String> {
    let missing = std::cell::RefCell::new(None);
    let expanded = expand(input, |name| {
        let value = lookup(name);
        if value.is_none() {
            missing.borrow_mut().get_or_insert_with(|| name.to_owned());
        }
        value
    });
    match missing.into_inner() {
        Some(name) => Err(name),
        None => Ok(expanded),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn with(input: &str) -> String {
        let vars = BTreeMap::from([("VAR_A", "A"), ("VAR_B", "B"), ("VAR_REF", "$(VAR_A)"), ("VAR_EMPTY", "")]);
        expand(input, |name| vars.get(name).copied())
    }

    #[test]
    fn upstream_examples() {
        for (input, want) in [
            ("$(VAR_A)", "A"),
            ("___$(VAR_B)___", "___B___"),
            ("$(VAR_A)-$(VAR_B)", "A-B"),
            ("$(VAR_REF)", "$(VAR_A)"),
            ("$$(VAR_A)", "$(VAR_A)"),
            ("$$$(VAR_A)", "$A"),
            ("$$$$(VAR_A)", "$$(VAR_A)"),
            ("$(MISSING)", "$(MISSING)"),
            ("foo$(VAR_EMPTY)bar", "foobar"),
            ("$VAR_A", "$VAR_A"),
            ("$(VAR_A", "$(VAR_A"),
            ("$(VAR_A$(VAR_B)", "$(VAR_A$(VAR_B)"),
            ("trailing$", "trailing$"),
            ("trailing$$", "trailing$"),
            ("$()", "$()"),
            ("$$()", "$()"),
            ("$é$(VAR_A)", "$éA"),
            ("\n", "\n"),
            ("", ""),
        ] {
            assert_eq!(with(input), want, "input {input:?}");
        }
    }

    #[test]
    fn strict_names_the_first_missing_variable() {
        assert_eq!(expand_strict("$(X)/$(Y)", |_| None), Err("X".to_owned()));
        assert_eq!(expand_strict("a/$$(X)", |_| None), Ok("a/$(X)".to_owned()));
    }

    /// A second, byte-wise formulation of the same rules.
    fn model(input: &str, vars: &BTreeMap<String, String>) -> Vec<u8> {
        let bytes = input.as_bytes();
        let (mut out, mut i) = (Vec::new(), 0);
        while i < bytes.len() {
            if bytes[i] != b'$' || i + 1 == bytes.len() {
                out.push(bytes[i]);
                i += 1;
                continue;
            }
            let close = bytes[i..].iter().position(|b| *b == b')').map(|p| i + p);
            match (bytes[i + 1], close) {
                (b'$', _) => {
                    out.push(b'$');
                    i += 2;
                }
                (b'(', Some(close)) => {
                    let name = &input[i + 2..close];
                    match vars.get(name) {
                        Some(value) => out.extend(value.bytes()),
                        None => out.extend(&bytes[i..=close]),
                    }
                    i = close + 1;
                }
                _ => {
                    out.extend(&bytes[i..i + 2]);
                    i += 2;
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn agrees_with_the_model(input in "[a-c$() é]{0,24}", vars in prop::collection::btree_map("[a-c]{1,2}", "[a-c$()]{0,4}", 0..4)) {
            let got = expand(&input, |name| vars.get(name).map(String::as_str));
            prop_assert_eq!(got.as_bytes(), model(&input, &vars));
        }

        #[test]
        fn text_without_dollar_is_untouched(input in "[^$]{0,64}") {
            prop_assert_eq!(expand(&input, |_| Some("x")), input);
        }

        #[test]
        fn doubled_dollars_give_the_text_back(input in "\\PC{0,64}") {
            let escaped = input.replace('$', "$$");
            prop_assert_eq!(expand(&escaped, |_| Some("x")), input);
        }
    }
}
