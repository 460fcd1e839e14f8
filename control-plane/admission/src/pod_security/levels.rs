//! Levels and versions of the Pod Security Standards, and the policy that a namespace's labels ask for.
//!
//! A policy always comes out; what cannot be read enforces `restricted`, and audits and warns nothing.
//! Upstream counterpart: `k8s.io/pod-security-admission/api` (`helpers.go`, `constants.go`).

use std::fmt;

use serde_json::Value;

use keelson_kinds::FieldError;

/// How much a pod may ask for; the greater, the stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything.
    Privileged,
    /// No known privilege escalation.
    Baseline,
    /// Hardened.
    Restricted,
}

impl Level {
    /// Reads a label's value.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Privileged, Self::Baseline, Self::Restricted].into_iter().find(|level| level.as_str() == text)
    }

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// Of which release the standards are; `latest` is newer than every number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// `v1.N`.
    Minor(u64),
    /// `latest`.
    Latest,
}

impl Version {
    /// Reads a label's value: `latest`, or `v1.` and a number without leading zeros.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "latest" {
            return Some(Self::Latest);
        }
        let minor = text.strip_prefix("v1.")?;
        let plain = minor.bytes().all(|b| b.is_ascii_digit()) && (minor == "0" || !minor.starts_with('0'));
        if plain { minor.parse().ok().map(Self::Minor) } else { None }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Minor(minor) => write!(f, "v1.{minor}"),
            Self::Latest => f.write_str("latest"),
        }
    }
}

/// A level at a version: `restricted:v1.30`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelVersion {
    /// The level.
    pub level: Level,
    /// The version.
    pub version: Version,
}

impl LevelVersion {
    /// What holds without labels.
    pub const PRIVILEGED: Self = Self { level: Level::Privileged, version: Version::Latest };
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level.as_str(), self.version)
    }
}

/// What a namespace enforces, audits and warns about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Pods that violate this are refused.
    pub enforce: LevelVersion,
    /// What violates this is noted in the audit log.
    pub audit: LevelVersion,
    /// What violates this is warned about.
    pub warn: LevelVersion,
}

/// The prefix of the labels, and of the audit annotations.
pub const PREFIX: &str = "pod-security.kubernetes.io/";

impl Policy {
    /// Nothing is refused, audited or warned about.
    pub const PRIVILEGED: Self =
        Self { enforce: LevelVersion::PRIVILEGED, audit: LevelVersion::PRIVILEGED, warn: LevelVersion::PRIVILEGED };

    /// The policy of a namespace with these `metadata.labels`, and what is wrong with them.
    #[must_use]
    pub fn of_labels(labels: &Value) -> (Self, Vec<FieldError>) {
        let mut policy = Self::PRIVILEGED;
        let mut errors = Vec::new();
        for (mode, slot, fallback) in [
            ("enforce", &mut policy.enforce, Level::Restricted),
            ("audit", &mut policy.audit, Level::Privileged),
            ("warn", &mut policy.warn, Level::Privileged),
        ] {
            let mut refuse = |label: String, text: &str, detail: &str| {
                errors.push(FieldError::invalid(format!("metadata.labels[{label}]"), text, detail));
            };
            let label = format!("{PREFIX}{mode}");
            if let Some(text) = labels[&label].as_str() {
                slot.level = Level::parse(text).unwrap_or_else(|| {
                    refuse(label, text, "must be one of privileged, baseline, restricted");
                    fallback
                });
            }
            let label = format!("{PREFIX}{mode}-version");
            if let Some(text) = labels[&label].as_str() {
                slot.version = Version::parse(text).unwrap_or_else(|| {
                    refuse(label, text, "must be \"latest\" or \"v1.x\"");
                    Version::Latest
                });
            }
        }
        (policy, errors)
    }
}
