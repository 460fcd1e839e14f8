//! The StatefulSet controller: reads caches, asks the pure parts, acts.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec};
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use kube::core::{Selector, SelectorExt};

use super::identity::{claim_names, claim_owners, claims, corrected, ordinal, pod, revision};
use super::plan::{Action, Input, Members, members, next_available, plan};
use super::status::{Revisions, status};
use crate::adopt::{self, Marks, child_changed, ignore_gone};
use crate::claim::claim;
use crate::engine::events::Level;
use crate::engine::{Caches, Events, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{is_deleting, labels, name_of, namespace_of, uid_of, workload_selector};
use crate::pods;
use crate::revisions::plan::{superfluous, template};
use crate::revisions::shell::{Current, History};

const COMPONENT: &str = "statefulset-controller";
/// On revisions: the hash of their template.
const HASH_LABEL: &str = "controller.kubernetes.io/hash";

/// The controller.
pub struct StatefulSets {
    caches: Arc<Caches>,
    sets: Kind<StatefulSet>,
    pods: Kind<Pod>,
    claims: Kind<PersistentVolumeClaim>,
    history: History,
    events: Events,
}

/// What one pass works with.
struct Pass<'a> {
    set: &'a StatefulSet,
    update: &'a ControllerRevision,
    /// The revision that is being left, with its template.
    current: (&'a str, PodTemplateSpec),
}

impl StatefulSets {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>, events: Events) -> Self {
        caches.claims.want();
        Self {
            sets: Kind::new(caches.client.clone(), Arc::clone(&caches.stateful_sets)),
            pods: Kind::new(caches.client.clone(), Arc::clone(&caches.pods)),
            claims: Kind::new(caches.client.clone(), Arc::clone(&caches.claims)),
            history: History::new(caches, HASH_LABEL),
            caches: Arc::clone(caches),
            events,
        }
    }

    /// Makes changes of sets, their pods and revisions fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        self.caches.stateful_sets.on_change(move |change| target.add(Key::of(change.object().as_ref())));
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches
            .pods
            .on_change(move |change| child_changed(&caches.stateful_sets, |key| target.add(key), change, selector));
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches
            .revisions
            .on_change(move |change| child_changed(&caches.stateful_sets, |key| target.add(key), change, selector));
    }

    fn pods_of(&self, set: &StatefulSet, matches: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
        claim(uid_of(set), true, matches, self.caches.pods.in_namespace(namespace_of(set))).owned
    }

    async fn act(&self, pass: &Pass<'_>, pods: &[Arc<Pod>]) -> Result<(), ReconcileError> {
        let set = pass.set;
        let update_revision = name_of(pass.update);
        let Members { condemned, wanted } = members(set, pods);
        for pod in wanted.iter().flatten() {
            // A claim that was deleted while its pod still waits for it is made again.
            if pods::phase(pod) == "Pending" && !is_deleting(pod.as_ref()) {
                self.make_claims(set, pod).await?;
            }
            if let Some(better) = corrected(set, pod).filter(|_| !is_deleting(pod.as_ref())) {
                let result = ignore_gone(self.pods.update(pod, &better).await);
                self.tell(set, "update", name_of(pod.as_ref()), result.as_ref().err());
                result?;
            }
            self.own_claims(set, pod, false).await?;
        }
        for pod in &condemned {
            self.own_claims(set, pod, true).await?;
        }
        let input = Input { set, pods, update_revision, now: Timestamp::now() };
        for action in plan(&input) {
            match action {
                Action::Create { ordinal, of_current } => {
                    let (name, template) = match of_current {
                        true => (pass.current.0, &pass.current.1),
                        false => (update_revision, &set.spec.template),
                    };
                    self.create(set, &pod(set, template, name, ordinal)).await?;
                }
                Action::Delete(pod) => {
                    let result = self.pods.delete(&pod, DeleteParams::default()).await;
                    self.tell(set, "delete", name_of(pod.as_ref()), result.as_ref().err());
                    result?;
                }
            }
        }
        Ok(())
    }

    async fn create(&self, set: &StatefulSet, pod: &Pod) -> Result<(), ReconcileError> {
        let made = match self.make_claims(set, pod).await {
            Ok(()) => self.pods.create(pod).await.map(drop),
            Err(error) => Err(error),
        };
        match made {
            Err(error) if error.is_namespace_terminating() => Ok(()),
            // Someone's pod has the name, or the cache is behind: nothing to tell, the next pass looks again.
            Err(error) if error.is_already_exists() => Err(error),
            other => {
                self.tell(set, "create", name_of(pod), other.as_ref().err());
                other
            }
        }
    }

    async fn make_claims(&self, set: &StatefulSet, pod: &Pod) -> Result<(), ReconcileError> {
        let Some(number) = ordinal(set, pod) else { return Ok(()) };
        for claim in claims(set, number) {
            if self.caches.claims.by_key(&Key::of(&claim)).is_some() {
                continue;
            }
            match self.claims.create(&claim).await {
                Ok(_) => {
                    let message = format!(
                        "create Claim {} Pod {} in StatefulSet {} success",
                        name_of(&claim),
                        name_of(pod),
                        name_of(set)
                    );
                    self.events.about(set, COMPONENT, Level::Normal, "SuccessfulCreate", message);
                }
                Err(error) if error.is_already_exists() || error.is_namespace_terminating() => {}
                Err(error) => {
                    let message = format!(
                        "create Claim {} for Pod {} in StatefulSet {} failed error: {}",
                        name_of(&claim),
                        name_of(pod),
                        name_of(set),
                        error.server_message()
                    );
                    self.events.about(set, COMPONENT, Level::Warning, "FailedCreate", message);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Makes a pod's claims go with the set or the pod, or not, as the retention policy says.
    async fn own_claims(&self, set: &StatefulSet, pod: &Arc<Pod>, is_condemned: bool) -> Result<(), ReconcileError> {
        let Some(number) = ordinal(set, pod) else { return Ok(()) };
        for name in claim_names(set, number) {
            let Some(claim) = self.caches.claims.get(namespace_of(set), &name) else { continue };
            let known = claim.metadata.owner_references.clone().unwrap_or_default();
            let owners = claim_owners(set, &known, Some(pod), is_condemned);
            if owners != known {
                let mut owned = claim.as_ref().clone();
                owned.metadata.owner_references = (!owners.is_empty()).then_some(owners);
                ignore_gone(self.claims.update(&claim, &owned).await)?;
            }
        }
        Ok(())
    }

    fn tell(&self, set: &StatefulSet, verb: &'static str, pod: &str, error: Option<&ReconcileError>) {
        let (good, bad) = match verb {
            "create" => ("SuccessfulCreate", "FailedCreate"),
            "update" => ("SuccessfulUpdate", "FailedUpdate"),
            _ => ("SuccessfulDelete", "FailedDelete"),
        };
        let start = format!("{verb} Pod {pod} in StatefulSet {}", name_of(set));
        match error {
            None => self.events.about(set, COMPONENT, Level::Normal, good, format!("{start} successful")),
            Some(error) => {
                let message = format!("{start} failed error: {}", error.server_message());
                self.events.about(set, COMPONENT, Level::Warning, bad, message);
            }
        }
    }

    /// Deletes old revisions beyond the limit that no pod was made from.
    async fn clean_history(
        &self,
        pass: &Pass<'_>,
        revisions: &[Arc<ControllerRevision>],
        pods: &[Arc<Pod>],
    ) -> Result<(), ReconcileError> {
        let Some(limit) = pass.set.spec.revision_history_limit.and_then(|l| usize::try_from(l).ok()) else {
            return Ok(());
        };
        let is_used = |candidate: &ControllerRevision| {
            let name = name_of(candidate);
            name == pass.current.0 || name == name_of(pass.update) || pods.iter().any(|pod| revision(pod) == name)
        };
        self.history.delete(&superfluous(revisions, is_used, limit)).await
    }

    async fn current_revision(
        &self,
        set: &StatefulSet,
        selector: &Selector,
    ) -> Result<(Vec<Arc<ControllerRevision>>, Current), ReconcileError> {
        let revisions = self.history.of(&self.sets, set, selector).await?;
        let collisions = set.status.as_ref().and_then(|s| s.collision_count).unwrap_or(0);
        let current = self.history.current(set, &set.spec.template, &revisions, collisions).await?;
        Ok((revisions, current))
    }
}

fn selector(set: &StatefulSet) -> Option<Selector> {
    workload_selector(&set.spec.selector)
}

impl Reconcile for StatefulSets {
    type Key = Key;
    const NAME: &'static str = COMPONENT;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(set) = self.caches.stateful_sets.by_key(key) else {
            return Ok(Outcome::Done);
        };
        let Some(selector) = selector(&set) else {
            return Ok(Outcome::Done);
        };
        let matches = |pod: &Pod| selector.matches(labels(pod)) && ordinal(&set, pod).is_some();
        adopt::take(&self.sets, &self.pods, set.as_ref(), matches, Marks::NONE).await?;
        let (revisions, update) = match self.current_revision(&set, &selector).await {
            Err(error) if error.is_namespace_terminating() => return Ok(Outcome::Done),
            other => other?,
        };
        let left = set.status.as_ref().and_then(|s| s.current_revision.as_deref());
        let left = revisions.iter().find(|r| Some(name_of(r.as_ref())) == left).unwrap_or(&update.revision);
        let pass = Pass {
            set: &set,
            update: &update.revision,
            current: (name_of(left.as_ref()), template(left).unwrap_or_else(|| set.spec.template.clone())),
        };
        let acted = match is_deleting(set.as_ref()) {
            true => Ok(()),
            false => self.act(&pass, &self.pods_of(&set, matches)).await,
        };
        let (pods, now) = (self.pods_of(&set, matches), Timestamp::now());
        let names = Revisions { current: pass.current.0, update: name_of(pass.update), collisions: update.collisions };
        let mut reported = set.as_ref().clone();
        reported.status = Some(status(&set, &pods, &names, now));
        ignore_gone(self.sets.update_status(&set, &reported).await)?;
        acted?;
        self.clean_history(&pass, &revisions, &pods).await?;
        Ok(Outcome::after(next_available(&set, &pods, now)))
    }
}
