//! What is recorded of which request: `audit.k8s.io/v1` Policy, judged as upstream does (`apiserver/pkg/audit/policy`). Pure.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::auth::{Attributes, User};

/// How much of a request is recorded; each has what the ones before have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    /// Nothing.
    None,
    /// Who asked for what, when, and what came of it.
    Metadata,
    /// What was sent as well.
    Request,
    /// What was answered as well.
    RequestResponse,
}

impl Level {
    /// As in policies and events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// When an event is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Stage {
    /// Before anything was done.
    RequestReceived,
    /// The head of a long answer (a watch) was sent.
    ResponseStarted,
    /// Everything was sent.
    ResponseComplete,
    /// The handler died.
    Panic,
}

impl Stage {
    /// As in policies and events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// A policy that cannot be used. Not retryable without a change of the file.
#[derive(Debug, thiserror::Error)]
#[error("the audit policy {path}: {why}", path = path.display())]
pub struct PolicyError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub why: String,
}

/// The file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    api_version: String,
    kind: String,
    #[serde(default)]
    #[allow(dead_code, reason = "upstream's files may have it; it says nothing")]
    metadata: serde::de::IgnoredAny,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// What is done with one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How much.
    pub level: Level,
    /// At which stages nothing is recorded.
    pub omit_stages: Vec<Stage>,
    /// Whether `managedFields` are left out of objects.
    pub omit_managed_fields: bool,
}

impl Policy {
    /// Reads a file.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let wrong = |why: String| PolicyError { path: path.to_owned(), why };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Self::parse(&text).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let documents = kube_common::yaml::parse_documents(text).map_err(|error| error.to_string())?;
        let [document] = documents.as_slice() else { return Err("one document is expected".to_owned()) };
        let policy: Self = serde_json::from_value(document.to_json()).map_err(|error| error.to_string())?;
        if (policy.api_version.as_str(), policy.kind.as_str()) != ("audit.k8s.io/v1", "Policy") {
            return Err(format!("audit.k8s.io/v1 Policy is expected, not {} {}", policy.api_version, policy.kind));
        }
        for (at, rule) in policy.rules.iter().enumerate() {
            let of_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
            if of_resources && !rule.non_resource_urls.is_empty() {
                return Err(format!("rules[{at}]: rules cannot apply to both regular resources and non-resource URLs"));
            }
            if let Some(url) = rule.non_resource_urls.iter().find(|url| !is_path(url)) {
                return Err(format!(
                    "rules[{at}].nonResourceURLs: {url:?} is neither * nor a path that has * at its end only"
                ));
            }
        }
        Ok(policy)
    }

    /// The first rule that fits decides; without one nothing is recorded.
    #[must_use]
    pub fn judge(&self, user: Option<&User>, attributes: &Attributes) -> Verdict {
        let rule = self.rules.iter().find(|rule| rule.fits(user, attributes));
        let own = rule.map(|rule| rule.omit_stages.as_slice()).unwrap_or_default();
        Verdict {
            level: rule.map_or(Level::None, |rule| rule.level),
            omit_stages: [&self.omit_stages, own].concat(),
            omit_managed_fields: rule.and_then(|rule| rule.omit_managed_fields).unwrap_or(self.omit_managed_fields),
        }
    }
}

fn is_path(url: &str) -> bool {
    url == "*" || (url.starts_with('/') && !url.strip_suffix('*').unwrap_or(url).contains('*'))
}

impl Rule {
    fn fits(&self, user: Option<&User>, attributes: &Attributes) -> bool {
        let has = |list: &[String], wanted: &str| list.is_empty() || list.iter().any(|one| one == wanted);
        // Who could not say who he is is none of those that a rule names.
        let is_named = self.users.is_empty() || user.is_some_and(|user| has(&self.users, &user.name));
        let in_group = |user: &User| self.user_groups.iter().any(|group| user.in_group(group));
        if !is_named || !(self.user_groups.is_empty() || user.is_some_and(in_group)) {
            return false;
        }
        if !has(&self.verbs, &attributes.verb) {
            return false;
        }
        let of_resource = attributes.path.is_empty();
        if !(self.namespaces.is_empty() && self.resources.is_empty()) {
            return of_resource
                && has(&self.namespaces, &attributes.namespace)
                && (self.resources.is_empty() || self.resources.iter().any(|one| one.fits(attributes)));
        }
        if !self.non_resource_urls.is_empty() {
            let path = &attributes.path;
            let fits = |url: &String| match url.strip_suffix('*') {
                Some(start) => path.starts_with(start),
                None => path == url,
            };
            return !of_resource && self.non_resource_urls.iter().any(fits);
        }
        true
    }
}

impl GroupResources {
    fn fits(&self, attributes: &Attributes) -> bool {
        if self.group != attributes.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !(self.resource_names.is_empty() || self.resource_names.contains(&attributes.name)) {
            return false;
        }
        let whole = attributes.full_resource();
        self.resources.iter().any(|wanted| {
            *wanted == whole
                || wanted == "*"
                || wanted.strip_prefix("*/").is_some_and(|sub| sub == attributes.subresource)
                || wanted.strip_suffix("/*").is_some_and(|resource| resource == attributes.resource)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: ["RequestReceived"]
rules:
  - level: None
    users: ["system:kube-proxy"]
    verbs: ["watch"]
    resources:
      - group: ""
        resources: ["endpoints", "services"]
  - level: None
    userGroups: ["system:authenticated"]
    nonResourceURLs: ["/api*", "/version"]
  - level: Request
    resources: [{ group: "", resources: ["configmaps"], resourceNames: ["seen"] }]
    namespaces: ["kube-system"]
    omitStages: ["ResponseStarted"]
    omitManagedFields: true
  - level: RequestResponse
    resources: [{ group: "", resources: ["pods/*", "*/scale"] }, { group: apps }]
  - level: Metadata
    resources: [{ group: "" }]
"#;

    fn asked(verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> Attributes {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let text = str::to_owned;
        Attributes {
            verb: text(verb),
            group: text(group),
            resource: text(resource),
            subresource: text(subresource),
            namespace: text(namespace),
            name: text(name),
            ..Attributes::default()
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = Policy::parse(POLICY).unwrap();
        let user =
            |name: &str| User { name: name.into(), groups: vec!["system:authenticated".into()], ..User::default() };
        let level = |name: &str, attributes: &Attributes| policy.judge(Some(&user(name)), attributes).level;
        let services = asked("watch", "", "services", "", "");
        assert_eq!(level("system:kube-proxy", &services), Level::None);
        assert_eq!(level("somebody", &services), Level::Metadata);
        let url = |path: &str| Attributes { verb: "get".into(), path: path.into(), ..Attributes::default() };
        assert_eq!(level("a", &url("/apis/apps")), Level::None);
        let anonymous = User::anonymous();
        assert_eq!(policy.judge(Some(&anonymous), &url("/apis")).level, Level::None, "no rule fits");
        let seen = policy.judge(Some(&user("a")), &asked("update", "", "configmaps", "kube-system", "seen"));
        assert_eq!((seen.level, seen.omit_managed_fields), (Level::Request, true));
        assert_eq!(seen.omit_stages, [Stage::RequestReceived, Stage::ResponseStarted]);
        assert_eq!(level("a", &asked("update", "", "configmaps", "default", "seen")), Level::Metadata);
        assert_eq!(level("a", &asked("update", "", "configmaps", "kube-system", "other")), Level::Metadata);
        assert_eq!(level("a", &asked("create", "", "pods/exec", "default", "p")), Level::RequestResponse);
        // Upstream's `pods/*` is pods themselves as well.
        assert_eq!(level("a", &asked("get", "", "pods", "default", "p")), Level::RequestResponse);
        assert_eq!(level("a", &asked("get", "", "endpoints", "default", "p")), Level::Metadata);
        assert_eq!(
            level("a", &asked("get", "", "replicationcontrollers/scale", "default", "p")),
            Level::RequestResponse
        );
        assert_eq!(level("a", &asked("get", "apps", "deployments", "default", "p")), Level::RequestResponse);
        assert_eq!(level("a", &asked("get", "batch", "jobs", "default", "p")), Level::None);
        assert_eq!(policy.judge(None, &services).level, Level::Metadata);
    }

    #[test]
    fn what_is_no_policy() {
        let wrong = |text: &str| Policy::parse(text).unwrap_err();
        assert!(wrong("kind: Policy\nrules: []").contains("apiVersion"));
        assert!(wrong("apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: []").contains("v1beta1"));
        let rule = |rule: &str| wrong(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- {rule}"));
        assert!(rule("level: All").contains("All"));
        assert!(rule("level: None\n  user: [a]").contains("user"));
        assert!(rule("level: None\n  nonResourceURLs: [/a*b]").contains("rules[0].nonResourceURLs"));
        assert!(rule("level: None\n  nonResourceURLs: [/a]\n  namespaces: [b]").contains("both"));
    }
}
