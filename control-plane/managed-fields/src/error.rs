//! Why an apply or update did not come about, in upstream's words.
//!
//! Upstream counterpart: `apimachinery/pkg/util/managedfields/internal/conflict.go` and the messages of `structuredmerge.go`.

use std::collections::BTreeMap;
use std::fmt;

use crate::fieldpath::{Path, Set};
use crate::managers::{DecodeError, ManagerId};
use crate::typed::TypedErrors;

/// A field that another manager set to something else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// Whose field it is.
    pub manager: ManagerId,
    /// Which field.
    pub path: Path,
}

impl Conflict {
    /// Type of the causes in a Status. Upstream: `metav1.CauseTypeFieldManagerConflict`.
    pub const CAUSE: &'static str = "FieldManagerConflict";

    /// Message of the cause: `conflict with "x" using v1`.
    #[must_use]
    pub fn message(&self) -> String {
        format!("conflict with {}", self.manager.describe())
    }

    /// Field of the cause: `.spec.replicas`.
    #[must_use]
    pub fn field(&self) -> String {
        self.path.to_string()
    }
}

/// All conflicts of an apply, by manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl Conflicts {
    pub(crate) fn paths(&self) -> Set {
        self.0.iter().map(|conflict| conflict.path.clone()).collect()
    }
}

/// Message of the Status, code 409, reason Conflict.
impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return write!(f, "Apply failed with 1 conflict: {}: {}", only.message(), only.path);
        }
        let mut by_manager: BTreeMap<&ManagerId, Vec<&Path>> = BTreeMap::new();
        for conflict in &self.0 {
            by_manager.entry(&conflict.manager).or_default().push(&conflict.path);
        }
        let mut lines = Vec::new();
        for (manager, paths) in by_manager {
            lines.push(format!("conflicts with {}:", manager.describe()));
            lines.extend(paths.into_iter().map(|path| format!("- {path}")));
        }
        write!(f, "Apply failed with {} conflicts: {}", self.0.len(), lines.join("\n"))
    }
}

impl std::error::Error for Conflicts {}

/// An object that could not be turned into another version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot convert to {api_version}: {message}")]
pub struct ConvertError {
    /// The version asked for.
    pub api_version: String,
    /// Why not.
    pub message: String,
}

/// Why managers could not be computed. Not retryable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The version of the request is not one of the types.
    #[error("no type for version {0}")]
    Version(String),
    /// The object that is to be written does not fit its schema.
    #[error("failed to convert new object ({object}) to smd typed: {errors}")]
    New {
        /// Namespace, name and kind.
        object: String,
        /// What does not fit.
        errors: TypedErrors,
    },
    /// The stored object does not fit its schema.
    #[error("failed to convert live object ({object}) to smd typed: {errors}")]
    Live {
        /// Namespace, name and kind.
        object: String,
        /// What does not fit.
        errors: TypedErrors,
    },
    /// Two versions of an object could not be compared or merged.
    #[error("failed to {what}: {errors}")]
    Typed {
        /// `compare objects`.
        what: &'static str,
        /// What does not fit.
        errors: TypedErrors,
    },
    /// An object could not be turned into a manager's version.
    #[error(transparent)]
    Convert(#[from] ConvertError),
}

/// Why an apply failed. Retryable only after the configuration changed, or with force for [`ApplyError::Conflicts`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// 409: others set these fields to something else.
    #[error(transparent)]
    Conflicts(#[from] Conflicts),
    /// 400: the configuration has managers.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// 500 upstream: the configuration does not fit the schema.
    #[error("failed to create typed patch object ({object}): {errors}")]
    Config {
        /// Namespace, name and kind.
        object: String,
        /// What does not fit.
        errors: TypedErrors,
    },
    /// 500: the stored managers are not understood.
    #[error("failed to decode managed fields: {0}")]
    Stored(#[from] DecodeError),
    /// 500: the rest.
    #[error(transparent)]
    Update(#[from] UpdateError),
}

impl ApplyError {
    /// Code of the Status that upstream answers with.
    #[must_use]
    pub const fn code(&self) -> u16 {
        match self {
            Self::Conflicts(_) => 409,
            Self::ManagedFields => 400,
            Self::Config { .. } | Self::Stored(_) | Self::Update(_) => 500,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::managers::Operation;

    fn conflict(manager: &str, operation: Operation, path: &[&str]) -> Conflict {
        Conflict { manager: ManagerId::new(manager, operation, "apps/v1", ""), path: Path::fields(path) }
    }

    #[test]
    fn one_conflict_is_one_line() {
        let one = conflict("kubectl-client-side-apply", Operation::Update, &["spec", "replicas"]);
        assert_eq!(one.message(), "conflict with \"kubectl-client-side-apply\" using apps/v1");
        assert_eq!(one.field(), ".spec.replicas");
        assert_eq!(
            Conflicts(vec![one]).to_string(),
            "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using apps/v1: .spec.replicas"
        );
    }

    #[test]
    fn several_are_listed_by_manager() {
        let conflicts = Conflicts(vec![
            conflict("b", Operation::Update, &["x"]),
            conflict("a", Operation::Apply, &["y"]),
            conflict("b", Operation::Update, &["z"]),
        ]);
        assert_eq!(
            conflicts.to_string(),
            "Apply failed with 3 conflicts: conflicts with \"a\":\n- .y\nconflicts with \"b\" using apps/v1:\n- .x\n- .z"
        );
    }
}
