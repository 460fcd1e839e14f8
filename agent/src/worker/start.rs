//! Creating sandboxes and containers.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::Container;
use tracing::{info, warn};

use super::Worker;
use crate::clock;
use crate::create::{container as container_config, sandbox as sandbox_config, security};
use crate::flight::line::Step;
use crate::hooks;
use crate::pod;
use crate::runtime::{ContainerState, RuntimeError, Sandbox, SandboxState, identity};
use crate::status::pod::Waiting;
use crate::sync::Start;

/// How often a reserved name leads to a higher attempt before the pass gives up.
const RESERVED_TRIES: u32 = 5;

impl Worker {
    /// The sandbox's configuration for an attempt.
    fn sandbox_config(&self, attempt: u32) -> Result<cri::PodSandboxConfig, crate::materials::MaterialError> {
        let materials = self.node.materials.sandbox(&self.pod)?;
        let parent = self.node.cgroups.parent(&self.pod);
        Ok(sandbox_config::config(&self.pod, attempt, &parent, &materials, &self.node.settings)?)
    }

    /// Creates a sandbox; a name that is taken by a leftover is cleared and the attempt raised.
    pub(super) async fn create_sandbox(&mut self, first_attempt: u32) -> Option<Sandbox> {
        let handler = match self.node.materials.runtime_handler(&self.pod).await {
            Ok(handler) => handler,
            Err(error) => {
                self.node.recorder.pod(&self.pod, "Warning", error.event, &error.message);
                return None;
            }
        };
        self.release_dead_sandboxes().await;
        for attempt in first_attempt..first_attempt + RESERVED_TRIES {
            let config = match self.sandbox_config(attempt) {
                Ok(config) => config,
                Err(error) => {
                    self.node.recorder.pod(&self.pod, "Warning", error.event, &error.message);
                    return None;
                }
            };
            if let Err(error) = make_dir(&PathBuf::from(&config.log_directory)) {
                self.sandbox_failed(&format!("create {}: {error}", config.log_directory));
                return None;
            }
            let doing = self.node.flight.begin(&self.pod, None, Step::Sandbox);
            let began = clock::now();
            let (runtime, handler) = (self.node.runtime.clone(), handler.clone());
            match self.calls.run(async move { runtime.run_sandbox(Box::new(config), handler).await }).await {
                Ok(id) => match self.node.runtime.sandbox_status(&id).await {
                    Ok(sandbox) => {
                        self.node.flight.network(&self.pod, began, &sandbox);
                        doing.done(sandbox.ips.join(" "));
                        self.node.metrics.sandbox_started();
                        info!(pod = %pod::display(&self.pod), sandbox = id, attempt, ips = ?sandbox.ips, "sandbox created");
                        return Some(sandbox);
                    }
                    Err(error) => {
                        doing.failed(error.to_string());
                        self.sandbox_failed(&error.to_string());
                        return None;
                    }
                },
                Err(RuntimeError::NameReserved { holder, .. }) => {
                    doing.failed("its name is taken");
                    warn!(pod = %pod::display(&self.pod), holder, "a sandbox name is taken, raising the attempt");
                    if !holder.is_empty() && self.record().sandboxes.iter().all(|s| s.id != holder) {
                        let _ = self.node.runtime.stop_sandbox(&holder).await;
                        let _ = self.node.runtime.remove_sandbox(&holder).await;
                    }
                }
                Err(error) => {
                    doing.failed(error.to_string());
                    self.sandbox_failed(&error.to_string());
                    return None;
                }
            }
        }
        self.sandbox_failed("every sandbox name tried is reserved in the runtime");
        None
    }

    /// A sandbox that died with the machine or the runtime still has its address and host ports in the network's books, until
    /// it is stopped. Upstream stops every sandbox of the pod before it makes another.
    async fn release_dead_sandboxes(&self) {
        let record = self.record();
        for dead in record.sandboxes.iter().filter(|s| s.state == SandboxState::NotReady) {
            if let Err(error) = self.node.runtime.stop_sandbox(&dead.id).await
                && !error.is_not_found()
            {
                warn!(pod = %pod::display(&self.pod), sandbox = dead.id, "cannot release a dead sandbox's network: {error}");
            }
        }
    }

    fn sandbox_failed(&self, message: &str) {
        let text = format!("Failed to create pod sandbox: {message}");
        warn!(pod = %pod::display(&self.pod), "{text}");
        self.node.recorder.pod(&self.pod, "Warning", "FailedCreatePodSandBox", &text);
    }

    /// Pulls, creates and starts one container; false when it has to be tried again.
    pub(super) async fn start_container(&mut self, start: &Start, sandbox: &Sandbox) -> bool {
        let pod = self.pod.clone();
        let Some((_, container)) = pod::find_container(&pod, &start.name) else { return true };
        match self.try_start(start, &container, sandbox).await {
            Ok(()) => {
                self.waiting.remove(&start.name);
                true
            }
            Err(waiting) => {
                self.waiting.insert(start.name.clone(), waiting);
                false
            }
        }
    }

    fn fail(&self, container: &Container, reason: &str, message: String) -> Waiting {
        self.node.recorder.container(&self.pod, container, "Warning", "Failed", &format!("Error: {message}"));
        warn!(pod = %pod::display(&self.pod), container = container.name, reason, "{message}");
        Waiting { reason: reason.to_owned(), message }
    }

    async fn try_start(&mut self, start: &Start, container: &Container, sandbox: &Sandbox) -> Result<(), Waiting> {
        let node = self.node.clone();
        let pod = self.pod.clone();
        let image_name = container.image.as_deref().unwrap_or_default();
        let auths = node.materials.credentials(&pod, image_name).await;
        let doing = node.flight.begin(&pod, Some(&container.name), Step::Image);
        let present = match node.images.ensure(&pod, container, &auths).await {
            Ok(present) => present,
            Err(waiting) => {
                doing.failed(&*waiting.reason);
                let text = format!("Error: {}", waiting.reason);
                node.recorder.container(&pod, container, "Warning", "Failed", &text);
                return Err(waiting);
            }
        };
        doing.done(image_name);
        security::check_non_root(&pod, container, &present.image)
            .map_err(|e| self.fail(container, "CreateContainerConfigError", e.to_string()))?;
        let mut ips = if pod::host_network(&pod) { node.host_ips.borrow().clone() } else { sandbox.ips.clone() };
        ips.retain(|ip| !ip.is_empty());
        let materials = node
            .materials
            .container(&pod, container, &ips)
            .await
            .map_err(|e| self.fail(container, "CreateContainerConfigError", e.message))?;
        let termination_log = self
            .termination_log(container)
            .map_err(|e| self.fail(container, "CreateContainerConfigError", e.to_string()))?;
        let doing = node.flight.begin(&pod, Some(&container.name), Step::Create);
        let (id, restart_count) =
            match self.create(start, container, sandbox, &present, materials, &termination_log).await {
                Ok(created) => created,
                Err(why) => {
                    doing.failed(&*why);
                    return Err(self.fail(container, "CreateContainerError", why));
                }
            };
        doing.done("");
        node.recorder.container(&pod, container, "Normal", "Created", "Container created");
        if let Some(backoff) = start.backoff {
            self.memory.backoff.insert(start.name.clone(), backoff);
        }
        let (runtime, started) = (node.runtime.clone(), id.clone());
        let doing = node.flight.begin(&pod, Some(&container.name), Step::Start);
        if let Err(error) = self.calls.run(async move { runtime.start_container(&started).await }).await {
            doing.failed(error.to_string());
            return Err(self.fail(container, "RunContainerError", error.to_string()));
        }
        doing.done(if restart_count > 0 { format!("restart {restart_count}") } else { String::new() });
        node.metrics.container_started(start.role);
        node.recorder.container(&pod, container, "Normal", "Started", "Container started");
        info!(pod = %pod::display(&pod), container = container.name, id, restart = restart_count, "container started");
        self.link_log(container, &id, restart_count);
        self.post_start(container, &id, &ips).await
    }

    async fn create(
        &self,
        start: &Start,
        container: &Container,
        sandbox: &Sandbox,
        present: &crate::images::Present,
        materials: crate::materials::ContainerMaterials,
        termination_log: &std::path::Path,
    ) -> Result<(String, u32), String> {
        let node = &self.node;
        let record = self.record();
        let target = security::target_of(&self.pod, start.role, &container.name)
            .and_then(|name| record.latest(name))
            .map(|r| r.id.clone());
        let sandbox_config = self.sandbox_config(sandbox.attempt).map_err(|e| e.message)?;
        let log_dir = PathBuf::from(&sandbox_config.log_directory).join(&container.name);
        make_dir(&log_dir).map_err(|e| format!("create {}: {e}", log_dir.display()))?;
        let mut restart_count = start.restart_count;
        for _ in 0..RESERVED_TRIES {
            let config = container_config::config(container_config::Inputs {
                pod: &self.pod,
                container,
                restart_count,
                image_reference: &present.reference,
                image: &present.image,
                materials: materials.clone(),
                termination_log: Some(termination_log),
                target_id: target.as_deref(),
                settings: &node.settings,
            });
            let (runtime, sandbox, sandbox_config) = (node.runtime.clone(), sandbox.id.clone(), sandbox_config.clone());
            let call =
                async move { runtime.create_container(&sandbox, Box::new(config), Box::new(sandbox_config)).await };
            match self.calls.run(call).await {
                Ok(id) => return Ok((id, restart_count)),
                Err(RuntimeError::NameReserved { holder, .. }) => {
                    warn!(pod = %pod::display(&self.pod), container = container.name, holder, "a container name is taken");
                    // One that never ran goes and leaves its name: it is no instance that logs or counts belong to.
                    let ran = record.containers.iter().any(|c| c.id == holder && c.state != ContainerState::Created);
                    if ran || holder.is_empty() || node.runtime.remove_container(&holder).await.is_err() {
                        restart_count += 1;
                    }
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("every container name tried is reserved in the runtime".into())
    }

    /// The file that becomes the container's termination message path.
    fn termination_log(&self, container: &Container) -> std::io::Result<PathBuf> {
        let dir = self.node.settings.pod_dir(self.uid()).join("containers").join(&container.name);
        make_dir(&dir)?;
        let path = dir.join(format!("{:08x}", rand::random::<u32>()));
        std::fs::write(&path, "")?;
        // Whatever user the container runs as may write it.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        Ok(path)
    }

    fn link_log(&self, container: &Container, id: &str, restart_count: u32) {
        let settings = &self.node.settings;
        let (name, namespace) = (pod::name(&self.pod), pod::namespace(&self.pod));
        let log = identity::pod_log_dir(&settings.logs_root, namespace, name, self.uid())
            .join(identity::container_log_path(&container.name, restart_count));
        let link = identity::log_symlink(&settings.links_root, name, namespace, &container.name, id);
        let made = make_dir(&settings.links_root).and_then(|()| std::os::unix::fs::symlink(&log, &link));
        if let Err(error) = made
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            warn!(link = %link.display(), "cannot make the log link: {error}");
        }
    }

    async fn post_start(&self, container: &Container, id: &str, ips: &[String]) -> Result<(), Waiting> {
        let Some(handler) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return Ok(()) };
        let node = &self.node;
        let doing = node.flight.begin(&self.pod, Some(&container.name), Step::PostStart);
        let outcome = hooks::run(node.runtime.as_ref(), id, handler, container, ips, hooks::NO_LIMIT).await;
        let Err(error) = outcome else {
            doing.done("");
            return Ok(());
        };
        doing.failed(error.to_string());
        let text = format!("PostStartHook failed: {error}");
        node.recorder.container(&self.pod, container, "Warning", "FailedPostStartHook", &text);
        let grace = std::time::Duration::from_secs(u64::try_from(pod::spec_grace(&self.pod)).unwrap_or(0));
        let kill = "FailedPostStartHook";
        node.recorder.container(&self.pod, container, "Normal", "Killing", kill);
        if let Err(error) = node.runtime.stop_container(id, grace).await {
            warn!(pod = %pod::display(&self.pod), container = container.name, "cannot stop after a failed postStart: {error}");
        }
        Err(Waiting { reason: "PostStartHookError".into(), message: error.to_string() })
    }
}

/// Makes a folder with its parents, mode 0755.
pub(super) fn make_dir(path: &std::path::Path) -> std::io::Result<()> {
    std::fs::create_dir_all(path)
}
