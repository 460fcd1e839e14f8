//! A runtime with a model behind it, for tests of workers and of the pod cache.
//!
//! It keeps sandboxes and containers as a real runtime would: names are unique by attempt, a stopped sandbox stops
//! its containers, a removed one takes them along. Every call is recorded; calls can be made to fail.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use k8s_cri::v1 as api;
use parking_lot::Mutex;

use super::identity::{CONTAINER_HASH, POD_NAME, POD_NAMESPACE, POD_UID};
use super::{
    Call, ContainerItem, ContainerRecord, ContainerState, Download, ExecOutput, Exit, Filter, Health, ImageRecord,
    PodKey, Runtime, RuntimeError, RuntimeVersion, Sandbox, SandboxItem, SandboxState,
};
use crate::clock;

#[derive(Default)]
struct World {
    sandboxes: Vec<(PodKey, Sandbox)>,
    containers: Vec<(PodKey, ContainerRecord)>,
    next: u32,
    calls: Vec<String>,
    failures: BTreeMap<&'static str, RuntimeError>,
    images: Vec<String>,
    downloads: Vec<Download>,
    execs: Execs,
}

/// Commands in containers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Execs {
    /// How long each takes.
    pub(crate) time: Duration,
    /// How many run now.
    pub(crate) now: usize,
    /// The most that ran at once.
    pub(crate) most: usize,
    /// All there were.
    pub(crate) all: usize,
}

/// The fake.
#[derive(Default)]
pub(crate) struct FakeRuntime {
    world: Mutex<World>,
}

impl FakeRuntime {
    /// A runtime that has these images.
    pub(crate) fn with_images(images: &[&str]) -> Self {
        let fake = Self::default();
        fake.world.lock().images = images.iter().map(|i| (*i).to_owned()).collect();
        fake
    }

    /// What the runtime tells of downloads, one answer after the other.
    pub(crate) fn set_downloads(&self, downloads: &[Download]) {
        self.world.lock().downloads = downloads.to_vec();
    }

    /// Gives every command a duration.
    pub(crate) fn set_exec_time(&self, time: Duration) {
        self.world.lock().execs.time = time;
    }

    /// Commands until now.
    pub(crate) fn execs(&self) -> Execs {
        self.world.lock().execs
    }

    /// Names of the calls that changed something, in order.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.world.lock().calls.clone()
    }

    /// Makes a call fail until told otherwise.
    pub(crate) fn fail(&self, call: &'static str, error: Option<RuntimeError>) {
        let mut world = self.world.lock();
        match error {
            Some(error) => world.failures.insert(call, error),
            None => world.failures.remove(call),
        };
    }

    /// Ends the running instance of a container.
    pub(crate) fn exit(&self, name: &str, code: i32) {
        let mut world = self.world.lock();
        for (_, c) in &mut world.containers {
            if c.name == name && c.state == ContainerState::Running {
                c.state = ContainerState::Exited;
                c.exit_code = code;
                c.finished_at = clock::now();
            }
        }
    }

    /// Loses every sandbox with what is in it.
    pub(crate) fn lose_sandboxes(&self) {
        let mut world = self.world.lock();
        for (_, s) in &mut world.sandboxes {
            s.state = SandboxState::NotReady;
        }
        for (_, c) in &mut world.containers {
            if c.state == ContainerState::Running {
                c.state = ContainerState::Exited;
                c.exit_code = 255;
                c.finished_at = clock::now();
            }
        }
    }

    fn act<T>(
        &self,
        call: &'static str,
        what: &str,
        f: impl FnOnce(&mut World) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        let mut world = self.world.lock();
        world.calls.push(format!("{call} {what}"));
        if let Some(error) = world.failures.get(call) {
            return Err(error.clone());
        }
        f(&mut world)
    }
}

fn missing(call: &'static str, id: &str) -> RuntimeError {
    RuntimeError::NotFound { call, message: id.to_owned() }
}

fn done<'a, T: Send + 'a>(result: Result<T, RuntimeError>) -> Call<'a, T> {
    async move { result }.boxed()
}

impl Runtime for FakeRuntime {
    fn version(&self) -> Call<'_, RuntimeVersion> {
        done(Ok(RuntimeVersion { name: "fake".into(), version: "1".into() }))
    }

    fn health(&self) -> Call<'_, Health> {
        done(Ok(Health::default()))
    }

    fn list_sandboxes(&self, filter: Filter) -> Call<'_, Vec<SandboxItem>> {
        let world = self.world.lock();
        let items = world.sandboxes.iter().filter(|(k, _)| filter.pod_uid.as_ref().is_none_or(|u| *u == k.uid));
        done(Ok(items
            .map(|(k, s)| SandboxItem {
                pod: k.clone(),
                id: s.id.clone(),
                attempt: s.attempt,
                state: s.state,
                created_at: s.created_at,
                origin: None,
            })
            .collect()))
    }

    fn list_containers(&self, filter: Filter) -> Call<'_, Vec<ContainerItem>> {
        let world = self.world.lock();
        let items = world.containers.iter().filter(|(k, _)| filter.pod_uid.as_ref().is_none_or(|u| *u == k.uid));
        done(Ok(items
            .map(|(k, c)| ContainerItem {
                pod: k.clone(),
                id: c.id.clone(),
                sandbox_id: c.sandbox_id.clone(),
                name: c.name.clone(),
                attempt: c.restart_count,
                state: c.state,
                created_at: c.created_at,
            })
            .collect()))
    }

    fn sandbox_status<'a>(&'a self, id: &'a str) -> Call<'a, Sandbox> {
        let world = self.world.lock();
        let found = world.sandboxes.iter().find(|(_, s)| s.id == id).map(|(_, s)| s.clone());
        done(found.ok_or_else(|| missing("PodSandboxStatus", id)))
    }

    fn container_status<'a>(&'a self, id: &'a str, exit: Option<Exit>) -> Call<'a, ContainerRecord> {
        let world = self.world.lock();
        let mut found = world.containers.iter().find(|(_, c)| c.id == id).map(|(_, c)| c.clone());
        if let (Some(c), Some(exit)) = (found.as_mut().filter(|c| c.state == ContainerState::Running), exit) {
            (c.state, c.exit_code, c.finished_at) = (ContainerState::Exited, exit.code, exit.at);
            (c.reason, c.early) = (exit.reason().to_owned(), true);
        }
        done(found.ok_or_else(|| missing("ContainerStatus", id)))
    }

    fn run_sandbox(&self, config: Box<api::PodSandboxConfig>, _: String) -> Call<'_, String> {
        let m = config.metadata.clone().unwrap_or_default();
        done(self.act("RunPodSandbox", &m.attempt.to_string(), |w| {
            if let Some((_, s)) = w.sandboxes.iter().find(|(k, s)| k.uid == m.uid && s.attempt == m.attempt) {
                let holder = s.id.clone();
                return Err(RuntimeError::NameReserved { call: "RunPodSandbox", holder, message: m.name.clone() });
            }
            w.next += 1;
            let id = format!("5a{:04x}", w.next);
            let l = &config.labels;
            let key =
                PodKey { uid: l[POD_UID].clone(), name: l[POD_NAME].clone(), namespace: l[POD_NAMESPACE].clone() };
            let sandbox = Sandbox {
                id: id.clone(),
                attempt: m.attempt,
                state: SandboxState::Ready,
                created_at: clock::now(),
                ips: vec!["10.0.0.7".into()],
                host_network: false,
            };
            w.sandboxes.push((key, sandbox));
            Ok(id)
        }))
    }

    fn stop_sandbox<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        done(self.act("StopPodSandbox", "", |w| {
            let (_, s) =
                w.sandboxes.iter_mut().find(|(_, s)| s.id == id).ok_or_else(|| missing("StopPodSandbox", id))?;
            s.state = SandboxState::NotReady;
            Ok(())
        }))
    }

    fn remove_sandbox<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        done(self.act("RemovePodSandbox", "", |w| {
            w.sandboxes.retain(|(_, s)| s.id != id);
            w.containers.retain(|(_, c)| c.sandbox_id != id);
            Ok(())
        }))
    }

    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: Box<api::ContainerConfig>,
        _: Box<api::PodSandboxConfig>,
    ) -> Call<'a, String> {
        let m = config.metadata.clone().unwrap_or_default();
        done(self.act("CreateContainer", &format!("{}:{}", m.name, m.attempt), |w| {
            let (key, _) = w
                .sandboxes
                .iter()
                .find(|(_, s)| s.id == sandbox_id)
                .ok_or_else(|| missing("CreateContainer", sandbox_id))?;
            let key = key.clone();
            let taken =
                w.containers.iter().find(|(k, c)| *k == key && c.name == m.name && c.restart_count == m.attempt);
            if let Some((_, c)) = taken {
                let holder = c.id.clone();
                return Err(RuntimeError::NameReserved { call: "CreateContainer", holder, message: m.name.clone() });
            }
            w.next += 1;
            let id = format!("c0{:04x}", w.next);
            let record = ContainerRecord {
                id: id.clone(),
                name: m.name.clone(),
                sandbox_id: sandbox_id.to_owned(),
                restart_count: m.attempt,
                state: ContainerState::Created,
                created_at: clock::now(),
                image: config.image.clone().unwrap_or_default().user_specified_image,
                image_ref: "sha256:fake".into(),
                hash: config.annotations.get(CONTAINER_HASH).and_then(|h| u64::from_str_radix(h, 16).ok()),
                ..ContainerRecord::default()
            };
            w.containers.push((key, record));
            Ok(id)
        }))
    }

    fn start_container<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        done(self.act("StartContainer", "", |w| {
            let (_, c) =
                w.containers.iter_mut().find(|(_, c)| c.id == id).ok_or_else(|| missing("StartContainer", id))?;
            c.state = ContainerState::Running;
            c.started_at = clock::now();
            Ok(())
        }))
    }

    fn stop_container<'a>(&'a self, id: &'a str, timeout: Duration) -> Call<'a, ()> {
        done(self.act("StopContainer", &timeout.as_millis().div_ceil(1000).to_string(), |w| {
            let (_, c) =
                w.containers.iter_mut().find(|(_, c)| c.id == id).ok_or_else(|| missing("StopContainer", id))?;
            if c.state == ContainerState::Running {
                c.state = ContainerState::Exited;
                c.exit_code = 137;
                c.finished_at = clock::now();
            }
            Ok(())
        }))
    }

    fn remove_container<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        done(self.act("RemoveContainer", "", |w| {
            w.containers.retain(|(_, c)| c.id != id);
            Ok(())
        }))
    }

    fn exec<'a>(&'a self, _: &'a str, _: Vec<String>, _: Duration) -> Call<'a, ExecOutput> {
        Box::pin(async move {
            let outcome = self.act("ExecSync", "", |world| {
                let execs = &mut world.execs;
                execs.now += 1;
                execs.most = execs.most.max(execs.now);
                execs.all += 1;
                Ok(execs.time)
            });
            let time = outcome?;
            if !time.is_zero() {
                tokio::time::sleep(time).await;
            }
            self.world.lock().execs.now -= 1;
            Ok(ExecOutput::default())
        })
    }

    fn reopen_log<'a>(&'a self, _: &'a str) -> Call<'a, ()> {
        done(Ok(()))
    }

    fn image_status<'a>(&'a self, image: &'a str) -> Call<'a, Option<ImageRecord>> {
        let there = self.world.lock().images.iter().any(|i| i == image);
        done(Ok(there.then(|| ImageRecord { id: "sha256:fake".into(), ..ImageRecord::default() })))
    }

    fn pull_image<'a>(&'a self, image: &'a str, _: Option<api::AuthConfig>) -> Call<'a, String> {
        done(self.act("PullImage", image, |_| {
            Err(RuntimeError::Failed { call: "PullImage", message: "no registry here".into() })
        }))
    }

    fn downloads(&self) -> Call<'_, Download> {
        let mut world = self.world.lock();
        let next = if world.downloads.is_empty() { None } else { Some(world.downloads.remove(0)) };
        done(next.ok_or(RuntimeError::Unimplemented { call: "ListContentStatuses" }))
    }

    fn list_images(&self) -> Call<'_, Vec<ImageRecord>> {
        done(Ok(Vec::new()))
    }

    fn remove_image<'a>(&'a self, _: &'a str) -> Call<'a, ()> {
        done(Ok(()))
    }
}
