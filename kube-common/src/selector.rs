//! Label and field selectors.
//!
//! Upstream counterpart: `apimachinery/pkg/labels` and `apimachinery/pkg/fields`. Both are pure; a selector is
//! parsed once and matched against many objects.

use std::collections::BTreeMap;

/// Labels or fields of an object, as a selector sees them.
pub trait Set {
    /// The value under a key, if there is one.
    fn value(&self, key: &str) -> Option<&str>;
}

impl Set for BTreeMap<String, String> {
    fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl Set for serde_json::Map<String, serde_json::Value> {
    fn value(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

impl<S: Set> Set for Option<S> {
    fn value(&self, key: &str) -> Option<&str> {
        self.as_ref()?.value(key)
    }
}

impl<S: Set> Set for &S {
    fn value(&self, key: &str) -> Option<&str> {
        (*self).value(key)
    }
}

/// Why a selector is not acceptable. Not retryable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The text does not follow the grammar.
    #[error("unable to parse requirement: {reason} in {text:?}")]
    Syntax {
        /// The part that was read.
        text: String,
        /// What was expected.
        reason: &'static str,
    },
    /// An operator that does not exist.
    #[error("{operator:?} is not a valid label selector operator")]
    Operator {
        /// What was given.
        operator: String,
    },
    /// `In` and `NotIn` need values; `Exists` and `DoesNotExist` take none; `Gt` and `Lt` take one number.
    #[error("values for {operator} on key {key:?}: {reason}")]
    Values {
        /// The key.
        key: String,
        /// The operator.
        operator: &'static str,
        /// What is wrong with the values.
        reason: &'static str,
    },
}

/// What a requirement asks of the value under its key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|text| text.parse::<i64>().ok());
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.iter().any(|v| v == value)),
            Operator::NotIn(values) => value.is_none_or(|value| values.iter().all(|v| v != value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            Operator::LessThan(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// A label selector: all requirements must hold. The empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl LabelSelector {
    /// Matches everything.
    #[must_use]
    pub fn everything() -> Self {
        Self::default()
    }

    /// Matches nothing: what a missing `LabelSelector` object means.
    #[must_use]
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// Whether it matches everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Exact labels, as a Service's or ReplicationController's `selector` has them.
    pub fn from_labels<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let exact = |(key, value): (&String, &String)| Requirement {
            key: key.clone(),
            operator: Operator::In(vec![value.clone()]),
        };
        Self { requirements: labels.into_iter().map(exact).collect(), nothing: false }
    }

    /// Reads the text form: `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1`.
    ///
    /// # Errors
    /// [`SelectorError::Syntax`] and [`SelectorError::Values`].
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(text) {
            let part = part.trim();
            if part.is_empty() {
                if text.trim().is_empty() {
                    continue;
                }
                return Err(SelectorError::Syntax { text: text.to_owned(), reason: "an empty requirement" });
            }
            requirements.push(requirement(part)?);
        }
        Ok(Self { requirements, nothing: false })
    }

    /// Reads a `metav1.LabelSelector` in JSON form; `None` matches nothing, an empty object everything.
    ///
    /// # Errors
    /// [`SelectorError::Operator`] and [`SelectorError::Values`].
    pub fn from_json(selector: Option<&serde_json::Value>) -> Result<Self, SelectorError> {
        let Some(selector) = selector.filter(|selector| !selector.is_null()) else { return Ok(Self::nothing()) };
        let mut requirements = Vec::new();
        for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default().to_owned();
            requirements.push(Requirement { key: key.clone(), operator: Operator::In(vec![value]) });
        }
        for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
            let text = |field: &str| expression[field].as_str().unwrap_or_default();
            let values: Vec<String> = expression["values"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|value| value.as_str().map(str::to_owned))
                .collect();
            requirements.push(Requirement {
                key: text("key").to_owned(),
                operator: operator(text("key"), text("operator"), values)?,
            });
        }
        Ok(Self { requirements, nothing: false })
    }

    /// One requirement of the object form, as node affinity has them (`Gt` and `Lt` included).
    ///
    /// # Errors
    /// [`SelectorError::Operator`] and [`SelectorError::Values`].
    pub fn and(mut self, key: &str, operator_name: &str, values: Vec<String>) -> Result<Self, SelectorError> {
        self.requirements.push(Requirement { key: key.to_owned(), operator: operator(key, operator_name, values)? });
        Ok(self)
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &impl Set) -> bool {
        !self.nothing && self.requirements.iter().all(|requirement| requirement.matches(labels.value(&requirement.key)))
    }
}

/// The object form's operators.
fn operator(key: &str, name: &str, values: Vec<String>) -> Result<Operator, SelectorError> {
    let wrong = |operator, reason| SelectorError::Values { key: key.to_owned(), operator, reason };
    let fail = |operator, reason| Err(wrong(operator, reason));
    let number = |operator: &'static str| -> Result<i64, SelectorError> {
        match values.as_slice() {
            [only] => only.parse().map_err(|_| wrong(operator, "must be one whole number")),
            _ => Err(wrong(operator, "must be one whole number")),
        }
    };
    match name {
        "In" if values.is_empty() => fail("In", "must not be empty"),
        "NotIn" if values.is_empty() => fail("NotIn", "must not be empty"),
        "Exists" if !values.is_empty() => fail("Exists", "must be empty"),
        "DoesNotExist" if !values.is_empty() => fail("DoesNotExist", "must be empty"),
        "In" => Ok(Operator::In(values)),
        "NotIn" => Ok(Operator::NotIn(values)),
        "Exists" => Ok(Operator::Exists),
        "DoesNotExist" => Ok(Operator::DoesNotExist),
        "Gt" => number("Gt").map(Operator::GreaterThan),
        "Lt" => number("Lt").map(Operator::LessThan),
        other => Err(SelectorError::Operator { operator: other.to_owned() }),
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// One requirement of the text form.
fn requirement(text: &str) -> Result<Requirement, SelectorError> {
    let fail = |reason| SelectorError::Syntax { text: text.to_owned(), reason };
    let make = |key: &str, operator| {
        let key = key.trim();
        let valid = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
        if valid { Ok(Requirement { key: key.to_owned(), operator }) } else { Err(fail("the key is not a label key")) }
    };
    let one = |value: &str| -> Result<Vec<String>, SelectorError> {
        let value = value.trim();
        if value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            Ok(vec![value.to_owned()])
        } else {
            Err(fail("the value is not a label value"))
        }
    };
    if let Some((head, values)) = text.split_once('(') {
        let values = values.trim_end().strip_suffix(')').ok_or_else(|| fail("a closing parenthesis is missing"))?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        let (key, word) =
            head.trim().rsplit_once(char::is_whitespace).ok_or_else(|| fail("'in' or 'notin' is missing"))?;
        return match word {
            "in" => make(key, Operator::In(values)),
            "notin" => make(key, Operator::NotIn(values)),
            _ => Err(fail("expected 'in' or 'notin' before the parenthesis")),
        };
    }
    if let Some((key, value)) = text.split_once("!=") {
        return make(key, Operator::NotIn(one(value)?));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return make(key, Operator::In(one(value)?));
    }
    let number = |value: &str| value.trim().parse::<i64>().map_err(|_| fail("expected a whole number"));
    if let Some((key, value)) = text.split_once('>') {
        return make(key, Operator::GreaterThan(number(value)?));
    }
    if let Some((key, value)) = text.split_once('<') {
        return make(key, Operator::LessThan(number(value)?));
    }
    match text.strip_prefix('!') {
        Some(key) => make(key, Operator::DoesNotExist),
        None => make(text, Operator::Exists),
    }
}

/// A field selector: `metadata.name=a,status.phase!=Running`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    /// Field, value, and whether they must be equal (true) or differ (false).
    terms: Vec<(String, String, bool)>,
}

impl FieldSelector {
    /// Reads the text form; `\` escapes `,`, `=` and itself.
    ///
    /// # Errors
    /// [`SelectorError::Syntax`].
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for part in split_unescaped(text) {
            if part.is_empty() {
                continue;
            }
            let (field, value, equal) = if let Some((field, value)) = part.split_once("!=") {
                (field, value, false)
            } else if let Some((field, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (field, value, true)
            } else {
                return Err(SelectorError::Syntax { text: part, reason: "expected '=', '==' or '!='" });
            };
            terms.push((field.trim().to_owned(), unescape(value), equal));
        }
        Ok(Self { terms })
    }

    /// Whether it matches everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The fields that it asks for, so that a server can refuse those it does not index.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|(field, ..)| field.as_str())
    }

    /// The value that a field must equal, if there is such a term.
    #[must_use]
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|(name, _, equal)| name == field && *equal).map(|(_, value, _)| value.as_str())
    }

    /// Whether an object whose fields `value_of` gives is selected; a missing field counts as empty.
    pub fn matches<'a>(&self, value_of: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms.iter().all(|(field, value, equal)| (value_of(field).unwrap_or_default() == value) == *equal)
    }
}

fn split_unescaped(text: &str) -> Vec<String> {
    let (mut parts, mut current, mut escaped) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        if c == ',' && !escaped {
            parts.push(std::mem::take(&mut current));
        } else {
            current.push(c);
        }
        escaped = c == '\\' && !escaped;
    }
    parts.push(current);
    parts
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\\' {
            out.extend(chars.next());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn text_form_matches_as_upstream() {
        let set = labels(&[("app", "web"), ("tier", "front"), ("n", "5")]);
        for (text, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier=front", true),
            ("app!=web", false),
            ("missing!=x", true),
            ("app in (web, api)", true),
            ("app notin (web)", false),
            ("missing notin (web)", true),
            ("app", true),
            ("!app", false),
            ("!missing", true),
            ("n>4", true),
            ("n<4", false),
            ("app>4", false),
            ("app in (web),tier in (back)", false),
            ("empty=", false),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap().matches(&set), expected, "{text}");
        }
    }

    #[test]
    fn bad_text_is_refused() {
        for text in ["a=b,", "a in b", "a in (b", "=b", "a b", "a=b=c", "a>x", "a on (b)", ","] {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn object_form() {
        let set = labels(&[("app", "web")]);
        let selector = json!({"matchLabels":{"app":"web"},"matchExpressions":[{"key":"x","operator":"DoesNotExist"}]});
        assert!(LabelSelector::from_json(Some(&selector)).unwrap().matches(&set));
        assert!(!LabelSelector::from_json(None).unwrap().matches(&set));
        assert!(LabelSelector::from_json(Some(&json!({}))).unwrap().matches(&set));
        let bad = json!({"matchExpressions":[{"key":"x","operator":"In"}]});
        assert!(LabelSelector::from_json(Some(&bad)).is_err());
        let bad = json!({"matchExpressions":[{"key":"x","operator":"Near","values":["a"]}]});
        assert!(matches!(LabelSelector::from_json(Some(&bad)), Err(SelectorError::Operator { .. })));
    }

    #[test]
    fn field_selectors() {
        let value_of = |field: &str| match field {
            "metadata.name" => Some("a,b"),
            "status.phase" => Some("Running"),
            _ => None,
        };
        for (text, expected) in [
            ("", true),
            (r"metadata.name=a\,b", true),
            ("status.phase!=Running", false),
            ("status.phase==Running,spec.nodeName=", true),
            ("spec.nodeName!=", false),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap().matches(value_of), expected, "{text}");
        }
        assert!(FieldSelector::parse("status.phase").is_err());
        assert_eq!(FieldSelector::parse("spec.nodeName=n1").unwrap().exact("spec.nodeName"), Some("n1"));
    }

    proptest! {
        #[test]
        fn never_panics(text in "[a-z=!<>(), \\\\]{0,40}") {
            let _ = LabelSelector::parse(&text).map(|s| s.matches(&labels(&[("a", "b")])));
            let _ = FieldSelector::parse(&text).map(|s| s.matches(|_| None));
        }
    }
}
