//! Named formats: `format.dns1123Label().validate(text)` gives what is wrong, or nothing.
//!
//! Upstream counterpart: `apiserver/pkg/cel/library/format.go`.

use base64::Engine;
use cel::common::types::{CelOptional, CelString, STRING_TYPE};
use cel::common::value::{CowVal, Val};

use kube_common::names;

use super::{Registry, arg, text, text_list, url};
use crate::value::opaque::opaque;

/// A format and its check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    name: &'static str,
    check: fn(&str) -> Vec<String>,
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

opaque!(
    /// A named format.
    FormatVal(Format), FORMAT, "kubernetes.NamedFormat"
);

macro_rules! formats {
    ($($name:literal => $check:expr;)*) => {
        fn named(name: &str) -> Option<FormatVal> {
            match name {
                $($name => Some(FormatVal(Format { name: $name, check: $check })),)*
                _ => None,
            }
        }

        fn register_each(registry: &mut Registry) {
            $(registry.global(concat!("format.", $name), &[], |_| {
                Ok(CowVal::owned(FormatVal(Format { name: $name, check: $check })))
            });)*
        }
    };
}

formats! {
    "dns1123Label" => names::dns1123_label;
    "dns1123Subdomain" => names::dns1123_subdomain;
    "dns1035Label" => names::dns1035_label;
    "qualifiedName" => names::qualified_name;
    "dns1123LabelPrefix" => |text| names::dns1123_label(&without_dash(text));
    "dns1123SubdomainPrefix" => |text| names::dns1123_subdomain(&without_dash(text));
    "dns1035LabelPrefix" => |text| names::dns1035_label(&without_dash(text));
    "labelValue" => names::label_value;
    "uri" => |text| url::parse(text).err().into_iter().collect();
    "uuid" => |text| unless(is_uuid(text), "does not match the UUID format");
    "byte" => |text| unless(is_base64(text), "invalid base64");
    "date" => |text| unless(is_timestamp(&format!("{text}T00:00:00Z")) && text.len() == 10, "invalid date");
    "datetime" => |text| unless(is_timestamp(text), "invalid datetime");
}

pub(super) fn register(registry: &mut Registry) {
    registry.named_type(&FORMAT);
    register_each(registry);
    registry.global("format.named", &[&STRING_TYPE], |args| {
        let found = named(text(&args, 0)?);
        Ok(CowVal::owned(found.map_or_else(CelOptional::none, |format| CelOptional::of(Box::new(format)))))
    });
    registry.member("validate", &FORMAT, &[&STRING_TYPE], |args| {
        let wrong = (arg::<FormatVal>(&args, 0)?.0.check)(text(&args, 1)?);
        let wrong: Option<Box<dyn Val>> = (!wrong.is_empty()).then(|| Box::new(text_list(wrong)) as Box<dyn Val>);
        Ok(CowVal::owned(wrong.map_or_else(CelOptional::none, CelOptional::of)))
    });
}

fn unless(fine: bool, message: &str) -> Vec<String> {
    if fine { Vec::new() } else { vec![message.to_owned()] }
}

/// A prefix may end in a dash, since something follows it.
fn without_dash(text: &str) -> String {
    match text.strip_suffix('-') {
        // Upstream puts an `a` in the place of the last two characters.
        Some(rest) if !rest.is_empty() => {
            let kept = rest.char_indices().next_back().map_or(0, |(at, _)| at);
            format!("{}a", &rest[..kept])
        }
        _ => text.to_owned(),
    }
}

fn is_uuid(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| *c != '-').collect();
    let dashes: Vec<usize> = text.match_indices('-').map(|(at, _)| at).collect();
    plain.len() == 32
        && plain.bytes().all(|c| c.is_ascii_hexdigit())
        && (dashes.is_empty() || dashes == [8, 13, 18, 23])
}

fn is_base64(text: &str) -> bool {
    base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}

fn is_timestamp(text: &str) -> bool {
    let args = vec![CowVal::owned(CelString::from(text.to_owned()))];
    super::env().find_overload("timestamp", &args).is_some_and(|op| op(args).is_ok())
}
