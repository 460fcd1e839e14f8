//! Webhook configurations, read once for each change of them.
//!
//! Configurations are asked in the order of their names, webhooks within one in their order, as upstream.

use std::sync::Arc;
use std::time::Duration;

use keelson_cel::match_conditions::{FailurePolicy, MatchConditions, WEBHOOK_VARIABLES};
use kube_common::selector::LabelSelector;
use serde_json::Value;

use super::Phase;
use super::rules::Rule;
use super::transport::Client;
use crate::cache::{Derived, WatchCache};
use crate::store::Revision;

/// Whether asking changes anything outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SideEffects {
    /// Not in a dry run.
    None,
    /// Perhaps always.
    Some,
}

/// One webhook.
#[derive(Debug)]
pub(super) struct Hook {
    pub(super) name: String,
    pub(super) rules: Vec<Rule>,
    /// Whether other versions of a kind count as the one that a rule names.
    pub(super) equivalent: bool,
    pub(super) namespaces: LabelSelector,
    pub(super) objects: LabelSelector,
    pub(super) conditions: MatchConditions,
    pub(super) failure: FailurePolicy,
    pub(super) side_effects: SideEffects,
    pub(super) timeout: Duration,
    pub(super) reinvoke: bool,
    /// The first that both sides know: `v1` or `v1beta1`.
    pub(super) review_version: &'static str,
    /// Where it is, or why it cannot be asked.
    pub(super) client: Result<Client, String>,
}

impl Hook {
    pub(super) fn read(hook: &Value) -> Self {
        let text = |field: &str| hook[field].as_str().unwrap_or_default();
        let selector = |field: &str| LabelSelector::from_json(hook.get(field)).unwrap_or_default();
        let versions = hook["admissionReviewVersions"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let known = versions.filter_map(|version| ["v1", "v1beta1"].into_iter().find(|known| *known == version)).next();
        Self {
            name: text("name").to_owned(),
            rules: hook["rules"].as_array().into_iter().flatten().map(Rule::read).collect(),
            equivalent: text("matchPolicy") != "Exact",
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
            conditions: MatchConditions::compile(&hook["matchConditions"], &WEBHOOK_VARIABLES),
            failure: FailurePolicy::read(&hook["failurePolicy"]),
            side_effects: match text("sideEffects") {
                "None" | "NoneOnDryRun" => SideEffects::None,
                _ => SideEffects::Some,
            },
            timeout: Duration::from_secs(hook["timeoutSeconds"].as_u64().unwrap_or(10)),
            reinvoke: text("reinvocationPolicy") == "IfNeeded",
            review_version: known.unwrap_or("v1"),
            client: Client::read(&hook["clientConfig"]),
        }
    }

    /// The URL that messages show.
    pub(super) fn shown_url(&self) -> String {
        let url = self.client.as_ref().map(Client::url).unwrap_or_default();
        let separator = if url.contains('?') { '&' } else { '?' };
        format!("{url}{separator}timeout={}s", self.timeout.as_secs())
    }
}

/// The webhooks of both phases, as of the last change of their configurations.
#[derive(Debug, Default)]
pub struct Configurations {
    mutating: Derived<Revision, Vec<Hook>>,
    validating: Derived<Revision, Vec<Hook>>,
}

impl Configurations {
    pub(super) fn hooks(&self, phase: Phase, cache: &WatchCache) -> Arc<Vec<Hook>> {
        let read = match phase {
            Phase::Mutating => &self.mutating,
            Phase::Validating => &self.validating,
        };
        read.get(cache.last_change(), || {
            let configurations = cache.values(None);
            let webhooks = configurations.iter().filter_map(|configuration| configuration["webhooks"].as_array());
            webhooks.flatten().map(Hook::read).collect()
        })
    }
}
