//! Images: whether to pull, how often to try, how many pulls at once; reasons, messages and events as upstream's.
//!
//! Upstream counterpart: `pkg/kubelet/images/image_manager.go`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_cri::v1::AuthConfig;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::clock;
use crate::events::Recorder;
use crate::pod;
use crate::pull_progress;
use crate::runtime::{ImageRecord, Runtime};
use crate::status::pod::Waiting;
use crate::sync::backoff::{self, Backoff, Limits};

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// What to pass to the runtime: the image's identifier.
    pub reference: String,
    /// The image's details.
    pub image: ImageRecord,
}

/// Pull bookkeeping of the node.
pub struct Images {
    runtime: Arc<dyn Runtime>,
    recorder: Arc<Recorder>,
    backoff: Mutex<HashMap<(String, String), (Backoff, Waiting)>>,
    slots: Option<Arc<Semaphore>>,
    limits: Limits,
}

/// Whether an image name is acceptable: lower-case path, optional registry, tag and digest.
#[must_use]
pub fn valid_name(image: &str) -> bool {
    let (name, digest) = image.split_once('@').map_or((image, None), |(n, d)| (n, Some(d)));
    if digest.is_some_and(|d| {
        d.split_once(':')
            .is_none_or(|(algo, hex)| algo.is_empty() || hex.len() < 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()))
    }) {
        return false;
    }
    let (path, tag) = split_tag(name);
    if tag.is_some_and(|t| {
        t.is_empty()
            || t.len() > 128
            || !t.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            || t.starts_with(['.', '-'])
    }) {
        return false;
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    if parts.len() > 1
        && (parts[0].contains(['.', ':'])
            || parts[0] == "localhost"
            || parts[0].bytes().any(|b| b.is_ascii_uppercase()))
    {
        parts.remove(0);
    }
    !path.is_empty()
        && parts.iter().all(|p| {
            !p.is_empty()
                && p.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
                && p.starts_with(|c: char| c.is_ascii_alphanumeric())
                && p.ends_with(|c: char| c.is_ascii_alphanumeric())
        })
}

fn split_tag(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (name, None),
    }
}

/// Adds `:latest` to a name without tag or digest.
#[must_use]
pub fn with_default_tag(image: &str) -> String {
    if image.contains('@') || split_tag(image).1.is_some() { image.to_owned() } else { format!("{image}:latest") }
}

/// The pull policy of a container, with the API's default for an absent one.
#[must_use]
pub fn policy(container: &Container) -> &str {
    match container.image_pull_policy.as_deref() {
        Some(p) => p,
        None => {
            let image = container.image.as_deref().unwrap_or_default();
            if with_default_tag(image).ends_with(":latest") && !image.contains('@') { "Always" } else { "IfNotPresent" }
        }
    }
}

impl Images {
    /// Bookkeeping for a node that pulls at most `parallel` images at once.
    #[must_use]
    pub fn new(runtime: Arc<dyn Runtime>, recorder: Arc<Recorder>, parallel: Option<usize>) -> Self {
        Self {
            runtime,
            recorder,
            backoff: Mutex::new(HashMap::new()),
            slots: parallel.map(|n| Arc::new(Semaphore::new(n))),
            limits: Limits::default(),
        }
    }

    /// Forgets the pulls of a pod that is gone.
    pub fn forget(&self, uid: &str) {
        self.backoff.lock().retain(|(owner, _), _| owner != uid);
    }

    /// When the next pull of a waiting image may begin, nanoseconds since the epoch.
    #[must_use]
    pub fn next_try(&self, uid: &str, image: &str) -> Option<i64> {
        let key = (uid.to_owned(), image.to_owned());
        let (state, _) = self.backoff.lock().get(&key).cloned()?;
        backoff::ready_at(Some(state), state.updated_at, clock::now())
    }

    /// Makes sure a container's image is there.
    ///
    /// # Errors
    /// The waiting reason and message for the container's status.
    pub async fn ensure(&self, pod: &Pod, container: &Container, auths: &[AuthConfig]) -> Result<Present, Waiting> {
        let image = container.image.as_deref().unwrap_or_default();
        if !valid_name(image) {
            let message = format!(
                "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: invalid reference format"
            );
            self.recorder.container(pod, container, "Warning", "InspectFailed", &message);
            return Err(Waiting { reason: "InvalidImageName".into(), message });
        }
        let full = with_default_tag(image);
        let found = self.runtime.image_status(&full).await.map_err(|error| {
            let message = format!("Failed to inspect image {image:?}: {error}");
            self.recorder.container(pod, container, "Warning", "InspectFailed", &message);
            Waiting { reason: "ImageInspectError".into(), message }
        })?;
        let policy = policy(container);
        if let Some(found) = found.filter(|_| policy != "Always") {
            let text = format!("Container image {image:?} already present on machine and can be accessed by the pod");
            self.recorder.container(pod, container, "Normal", "Pulled", &text);
            return Ok(Present { reference: found.id.clone(), image: found });
        }
        if policy == "Never" {
            let message = format!("Container image {image:?} is not present with pull policy of Never");
            self.recorder.container(pod, container, "Warning", "ErrImageNeverPull", &message);
            return Err(Waiting { reason: "ErrImageNeverPull".into(), message });
        }
        self.pull(pod, container, image, &full, auths).await
    }

    async fn pull(
        &self,
        pod: &Pod,
        container: &Container,
        image: &str,
        full: &str,
        auths: &[AuthConfig],
    ) -> Result<Present, Waiting> {
        let key = (pod::uid(pod).to_owned(), image.to_owned());
        let remembered = self.backoff.lock().get(&key).cloned();
        if let Some((state, last)) = &remembered
            && backoff::ready_at(Some(*state), state.updated_at, clock::now()).is_some()
        {
            let text = format!("Back-off pulling image {image:?}");
            self.recorder.container(pod, container, "Normal", "BackOff", &text);
            let message = format!("{text}: {}: {}", last.reason, last.message);
            return Err(Waiting { reason: "ImagePullBackOff".into(), message });
        }
        self.recorder.container(pod, container, "Normal", "Pulling", &format!("Pulling image {image:?}"));
        let queued = Instant::now();
        let tell = |text: &str| self.recorder.container(pod, container, "Normal", "Pulling", text);
        let work = async {
            let permit = match &self.slots {
                Some(slots) => slots.clone().acquire_owned().await.ok(),
                None => None,
            };
            let began = Instant::now();
            let outcome = self.try_pull(full, auths).await;
            drop(permit);
            (outcome, began)
        };
        let (outcome, began) = pull_progress::watched(&*self.runtime, image, tell, work).await;
        match outcome {
            Ok(found) => {
                self.backoff.lock().remove(&key);
                let text = format!(
                    "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {} bytes.",
                    short(began.elapsed()),
                    short(queued.elapsed()),
                    found.size
                );
                self.recorder.container(pod, container, "Normal", "Pulled", &text);
                Ok(Present { reference: found.id.clone(), image: found })
            }
            Err(error) => {
                let text = format!("Failed to pull image {image:?}: {error}");
                self.recorder.container(pod, container, "Warning", "Failed", &text);
                let now = clock::now();
                let waiting = Waiting { reason: "ErrImagePull".into(), message: error };
                let next = backoff::next(remembered.map(|(s, _)| s), now, now, self.limits);
                self.backoff.lock().insert(key, (next, waiting.clone()));
                Err(waiting)
            }
        }
    }

    /// Pulls with each credential in turn, without any if there is none.
    async fn try_pull(&self, full: &str, auths: &[AuthConfig]) -> Result<ImageRecord, String> {
        let mut last = String::new();
        let attempts: Vec<Option<AuthConfig>> =
            if auths.is_empty() { vec![None] } else { auths.iter().cloned().map(Some).collect() };
        for auth in attempts {
            match self.runtime.pull_image(full, auth).await {
                Ok(reference) => {
                    return match self.runtime.image_status(&reference).await {
                        Ok(Some(found)) => Ok(found),
                        Ok(None) => Ok(ImageRecord { id: reference, ..ImageRecord::default() }),
                        Err(error) => Err(error.to_string()),
                    };
                }
                Err(error) => last = error.to_string(),
            }
        }
        Err(last)
    }
}

/// A duration as Go prints it, in milliseconds.
fn short(d: Duration) -> String {
    backoff::go_text(Duration::from_millis(u64::try_from(d.as_millis()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in [
            "nginx",
            "nginx:1.14.2",
            "registry.k8s.io/pause:3.10",
            "localhost:5000/a/b",
            "a/b@sha256:0123456789abcdef0123456789abcdef",
        ] {
            assert!(valid_name(good), "{good}");
        }
        for bad in ["", "Nginx", "nginx:", "a b", "nginx:la/test:", "a//b", "a@sha256:12", ":x"] {
            assert!(!valid_name(bad), "{bad}");
        }
    }

    #[test]
    fn tags_and_policies() {
        assert_eq!(with_default_tag("localhost:5000/a"), "localhost:5000/a:latest");
        assert_eq!(with_default_tag("a:1"), "a:1");
        let c = |image: &str| Container { image: Some(image.into()), ..Container::default() };
        assert_eq!(policy(&c("a")), "Always");
        assert_eq!(policy(&c("a:1")), "IfNotPresent");
    }
}
