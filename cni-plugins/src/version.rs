//! Versions of the CNI specification.

use std::fmt;

use serde_json::json;

/// A version whose result format this program can write. Ordered by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.1.0, also meant by a configuration without `cniVersion`.
    V0_1_0,
    /// 0.2.0, the last with one address per family.
    V0_2_0,
    /// 0.3.0
    V0_3_0,
    /// 0.3.1
    V0_3_1,
    /// 0.4.0, the first with CHECK.
    V0_4_0,
    /// 1.0.0
    V1_0_0,
    /// 1.1.0, the first with GC and STATUS.
    V1_1_0,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Self; 7] =
        [Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    /// The version of a configuration's `cniVersion`; an empty one is the oldest.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::V0_1_0);
        }
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// All versions as text, oldest first.
pub fn supported() -> Vec<&'static str> {
    Version::ALL.into_iter().map(Version::as_str).collect()
}

/// The answer to VERSION.
pub fn report() -> String {
    format!("{}\n", json!({ "cniVersion": Version::V1_1_0.as_str(), "supportedVersions": supported() }))
}
