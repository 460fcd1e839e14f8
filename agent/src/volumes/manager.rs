//! Brings the volumes of pods up, keeps their content fresh, and takes them down.
//!
//! Invariants: what is mounted is read from the kernel, never remembered, so a restart needs no
//! state of its own: [`VolumeManager::set_up`] finds what is there and completes it. Set-up,
//! refresh and teardown of one pod exclude each other. A change of a ConfigMap or Secret reaches
//! the volumes that show it as soon as the watch tells of it; nothing polls. When the API server
//! cannot be asked, content that was written before stays as it is and counts as set up.
//!
//! Upstream counterpart: the volume manager with its reconciler and the ephemeral volume plugins.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::container::{ContainerMounts, MountSource};
use super::error::{ContainerMountError, TeardownError, VolumeCause, VolumeError};
use super::folders::{self, Medium, PodDir};
use super::hostpath;
use super::mounts::Mounter;
use super::objects::{ObjectKey, ObjectReader, referenced_objects};
use super::ownership::Ownership;
use super::payload::Payload;
use super::render::{self, Renderer};
use super::teardown::{self, DiskPod};
use super::tokens::{PodTokens, until};
use super::{atomic, is_dns_label};
use crate::env::fields::NodeFacts;

/// Volumes that were right are looked at again after so long, in case something foreign unmounted them.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Pods refreshed at the same time after a change.
const REFRESH_PARALLEL: usize = 4;

/// Told about a volume whose refresh failed, to make an event of it.
pub type OnError = Arc<dyn Fn(&Pod, &VolumeError) + Send + Sync>;

struct PodState {
    pod: Arc<Pod>,
    facts: NodeFacts,
    /// When everything was last found or made right.
    complete: Option<Instant>,
    removed: bool,
}

impl PodState {
    /// Whether the volumes of `pod` were right a moment ago and nothing they depend on has changed: a pod's status
    /// changes often, its volumes seldom.
    fn settled(&self, pod: &Pod, facts: &NodeFacts) -> bool {
        let (old, new) = (&self.pod.metadata, &pod.metadata);
        self.complete.is_some_and(|at| at.elapsed() < LOOK_AGAIN)
            && self.facts == *facts
            && old.labels == new.labels
            && old.annotations == new.annotations
            && self.pod.spec == pod.spec
    }
}

struct PodEntry {
    state: tokio::sync::Mutex<PodState>,
    tokens: PodTokens,
    /// What it refers to, to find the pods that a change concerns.
    keys: Mutex<BTreeSet<ObjectKey>>,
    dirty: Mutex<Dirty>,
}

/// What of a pod's volumes is to be brought up to date; changes that come while that waits are added to it.
#[derive(Default)]
struct Dirty {
    everything: bool,
    tokens: bool,
    keys: BTreeSet<ObjectKey>,
    /// A task is at it.
    busy: bool,
}

impl Dirty {
    fn is_clean(&self) -> bool {
        !self.everything && !self.tokens && self.keys.is_empty()
    }

    fn concerns(&self, volume: &Volume) -> bool {
        self.everything
            || (self.tokens && render::has_token(volume))
            || self.keys.iter().any(|key| render::refers_to(volume, key))
    }
}

/// The volumes of all pods of the node. Cheap to share (`Arc`).
pub struct VolumeManager {
    root: PathBuf,
    reader: Arc<dyn ObjectReader>,
    mounter: Arc<dyn Mounter>,
    on_error: OnError,
    pods: Mutex<HashMap<String, Arc<PodEntry>>>,
    tokens_changed: Notify,
    refreshing: Semaphore,
    pokes: Mutex<HashMap<String, watch::Sender<u64>>>,
}

impl VolumeManager {
    /// A manager for the pods below `root` (`/var/lib/kubelet`).
    pub fn new(
        root: impl Into<PathBuf>,
        reader: Arc<dyn ObjectReader>,
        mounter: Arc<dyn Mounter>,
        on_error: OnError,
    ) -> Arc<Self> {
        Arc::new(Self {
            root: root.into(),
            reader,
            mounter,
            on_error,
            pods: Mutex::new(HashMap::new()),
            tokens_changed: Notify::new(),
            refreshing: Semaphore::new(REFRESH_PARALLEL),
            pokes: Mutex::default(),
        })
    }

    /// Where ConfigMaps and Secrets come from (for environments and pull secrets).
    pub fn reader(&self) -> &Arc<dyn ObjectReader> {
        &self.reader
    }

    /// The folder of a pod; `None` for a UID that is no file name.
    pub fn pod_dir(&self, uid: &str) -> Option<PodDir> {
        PodDir::new(&self.root, uid)
    }

    fn entry(&self, pod: &Arc<Pod>, facts: &NodeFacts) -> Arc<PodEntry> {
        let uid = uid_of(pod);
        let keys = referenced_objects(pod);
        self.reader.hold(uid, keys.clone());
        let mut pods = self.pods.lock();
        let entry = pods.entry(uid.to_owned()).or_insert_with(|| {
            Arc::new(PodEntry {
                state: tokio::sync::Mutex::new(PodState {
                    pod: Arc::clone(pod),
                    facts: facts.clone(),
                    complete: None,
                    removed: false,
                }),
                tokens: PodTokens::default(),
                keys: Mutex::default(),
                dirty: Mutex::default(),
            })
        });
        *entry.keys.lock() = keys;
        Arc::clone(entry)
    }

    /// Changes whenever an object that pod `uid` refers to (volumes, environment, pull secrets) changed: what failed
    /// for want of it is worth another try at once.
    pub fn changed(&self, uid: &str) -> watch::Receiver<u64> {
        let mut pokes = self.pokes.lock();
        pokes.entry(uid.to_owned()).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// Sets up every volume of `pod`, or brings it up to date. To be called before containers are
    /// started and again whenever the pod object (labels, annotations) or `facts` changed; cheap
    /// when there is nothing to do. A caller that goes away does not interrupt what has begun, so
    /// that a teardown never meets half of it.
    ///
    /// # Errors
    /// One [`VolumeError`] for each volume that is not ready; the others are.
    pub async fn set_up(self: &Arc<Self>, pod: &Arc<Pod>, facts: &NodeFacts) -> Result<(), Vec<VolumeError>> {
        let (manager, pod, facts) = (Arc::clone(self), Arc::clone(pod), facts.clone());
        let task = tokio::spawn(async move { manager.set_up_now(&pod, facts).await });
        task.await.unwrap_or_else(|_| Err(vec![removed()]))
    }

    async fn set_up_now(&self, pod: &Arc<Pod>, facts: NodeFacts) -> Result<(), Vec<VolumeError>> {
        let entry = self.entry(pod, &facts);
        let mut state = entry.state.lock().await;
        if state.removed {
            return Err(vec![removed()]);
        }
        if state.settled(pod, &facts) {
            return Ok(());
        }
        state.pod = Arc::clone(pod);
        state.facts = facts;
        let errors = self.refresh_locked(&entry, &state, |_| true).await;
        state.complete = errors.is_empty().then(Instant::now);
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Has the content of a known pod's volumes brought up to date soon; failures go to the manager's `on_error`.
    pub fn refresh(self: &Arc<Self>, uid: &str) {
        let entry = self.pods.lock().get(uid).cloned();
        if let Some(entry) = entry {
            self.refresh_soon(&entry, |dirty| dirty.everything = true);
        }
    }

    async fn refresh_locked(
        &self,
        entry: &PodEntry,
        state: &PodState,
        which: impl Fn(&Volume) -> bool,
    ) -> Vec<VolumeError> {
        let volumes = state.pod.spec.iter().flat_map(|s| s.volumes.iter());
        let volumes: Vec<&Volume> = volumes.flatten().filter(|v| which(v)).collect();
        let Some(dir) = self.pod_dir(uid_of(&state.pod)) else {
            let name = uid_of(&state.pod).to_owned();
            return vec![VolumeError { volume: String::new(), cause: VolumeCause::Name { what: "pod UID", name } }];
        };
        if state.removed {
            return Vec::new();
        }
        let folders = dir.clone();
        if let Err(cause) = blocking(move || folders.create()).await {
            return vec![VolumeError { volume: volumes.first().map_or(String::new(), |v| v.name.clone()), cause }];
        }
        let renderer = Renderer {
            reader: &*self.reader,
            pod: &state.pod,
            facts: &state.facts,
            tokens: &entry.tokens,
            owner: Ownership::of(&state.pod),
        };
        let results = join_all(volumes.iter().map(|volume| async {
            let result = self.volume(&dir, &renderer, volume).await;
            result.err().map(|cause| VolumeError { volume: volume.name.clone(), cause })
        }))
        .await;
        if volumes.iter().any(|v| render::has_token(v)) {
            self.tokens_changed.notify_one();
        }
        results.into_iter().flatten().collect()
    }

    async fn volume(&self, dir: &PodDir, renderer: &Renderer<'_>, volume: &Volume) -> Result<(), VolumeCause> {
        if !is_dns_label(&volume.name) {
            return Err(VolumeCause::Name { what: "volume name", name: volume.name.chars().take(128).collect() });
        }
        if let Some(source) = &volume.host_path {
            let path = source.path.clone();
            let kind = source.type_.clone().unwrap_or_default();
            return blocking(move || Ok(hostpath::check(&path, &kind)?)).await;
        }
        if volume.empty_dir.is_some() || has_no_source(volume) {
            return self.empty_dir(dir, renderer, volume).await;
        }
        let (plugin, memory) = wrapper_of(volume)?;
        let path = dir.volume(plugin, &volume.name);
        let payload = match renderer.render(volume).await {
            Ok(Some(payload)) => payload,
            Ok(None) => return Ok(()),
            Err(cause) if cause.is_unavailable() && atomic::is_populated(&path) => {
                tracing::warn!(volume = volume.name, %cause, "keeping the volume as it was written before");
                return Ok(());
            }
            Err(cause) => return Err(cause),
        };
        let medium = if memory { Medium::Memory(self.memory(renderer, None)) } else { Medium::Disk };
        self.write(dir, path, &volume.name, medium, payload, renderer.owner).await
    }

    fn memory(
        &self,
        renderer: &Renderer<'_>,
        limit: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    ) -> Option<u64> {
        let allocatable = renderer.facts.allocatable.get("memory");
        folders::memory_size(renderer.pod, limit, allocatable)
    }

    async fn empty_dir(&self, dir: &PodDir, renderer: &Renderer<'_>, volume: &Volume) -> Result<(), VolumeCause> {
        let source = volume.empty_dir.as_ref();
        let limit = source.and_then(|s| s.size_limit.as_ref());
        let medium = match source.and_then(|s| s.medium.as_deref()) {
            None | Some("") => Medium::Disk,
            Some("Memory") => Medium::Memory(self.memory(renderer, limit)),
            Some(other) if other.starts_with("HugePages") => {
                return Err(VolumeCause::Unsupported { kind: "emptyDir with medium HugePages" });
            }
            Some(other) => {
                return Err(VolumeCause::Medium { medium: other.into() });
            }
        };
        let mode = source.and_then(|s| s.mode).map(super::payload::mode_bits);
        let (mounter, dir) = (Arc::clone(&self.mounter), dir.clone());
        let (name, owner) = (volume.name.clone(), renderer.owner);
        blocking(move || folders::set_up_empty_dir(&*mounter, &dir, &name, &medium, mode, owner)).await
    }

    async fn write(
        &self,
        dir: &PodDir,
        path: PathBuf,
        name: &str,
        medium: Medium,
        payload: Payload,
        owner: Ownership,
    ) -> Result<(), VolumeCause> {
        let (mounter, dir, name) = (Arc::clone(&self.mounter), dir.clone(), name.to_owned());
        blocking(move || {
            folders::set_up_wrapper(&*mounter, &dir, &path, &name, &medium, owner)?;
            atomic::write(&path, &payload, owner)?;
            Ok(())
        })
        .await
    }

    /// The CRI mounts for one container's `volumeMounts`, subPaths prepared. `env` is the
    /// container's final environment (for `subPathExpr`). `/etc/hosts` and the termination log are
    /// the caller's.
    ///
    /// # Errors
    /// [`ContainerMountError`].
    pub async fn container_mounts(
        self: &Arc<Self>,
        pod: &Pod,
        container: &Container,
        env: &[(String, String)],
    ) -> Result<Vec<k8s_cri::v1::Mount>, ContainerMountError> {
        let uid = uid_of(pod);
        let refused = |message: &str, detail| ContainerMountError { message: message.into(), detail };
        let dir = self.pod_dir(uid).ok_or_else(|| refused("invalid pod UID", None))?;
        let mounts = ContainerMounts::plan(pod, container, env, |volume| source_of(&dir, volume))?;
        if !mounts.has_sub_paths() {
            return mounts.prepare(&*self.mounter, &dir);
        }
        let entry = self.pods.lock().get(uid).cloned();
        let mounter = Arc::clone(&self.mounter);
        let task = tokio::spawn(async move {
            // Held until the mounts are there: a teardown waits for them and takes them down, too.
            let state = match &entry {
                Some(entry) => Some(entry.state.lock().await),
                None => None,
            };
            if state.as_ref().is_some_and(|state| state.removed) {
                return Err(refused("the pod is being removed", None));
            }
            let work = tokio::task::spawn_blocking(move || mounts.prepare(&*mounter, &dir));
            work.await.unwrap_or_else(|error| Err(refused("preparing mounts was interrupted", Some(error.to_string()))))
        });
        task.await.unwrap_or_else(|error| Err(refused("preparing mounts was interrupted", Some(error.to_string()))))
    }

    /// Unmounts and removes every volume of a pod whose containers are all gone. Fine for a pod
    /// that was never set up, or that a run before this one left behind.
    ///
    /// # Errors
    /// [`TeardownError`]; call again.
    pub async fn tear_down(self: &Arc<Self>, uid: &str) -> Result<(), TeardownError> {
        self.take_down(uid, false).await
    }

    /// [`Self::tear_down`], then removes the pod's whole folder.
    ///
    /// # Errors
    /// [`TeardownError`]; call again.
    pub async fn remove_pod(self: &Arc<Self>, uid: &str) -> Result<(), TeardownError> {
        self.take_down(uid, true).await
    }

    async fn take_down(self: &Arc<Self>, uid: &str, whole: bool) -> Result<(), TeardownError> {
        let Some(dir) = self.pod_dir(uid) else {
            return Err(TeardownError::Uid { uid: uid.into() });
        };
        let (manager, uid) = (Arc::clone(self), uid.to_owned());
        let task = tokio::spawn(async move { manager.take_down_now(&uid, dir, whole).await });
        task.await.unwrap_or(Err(TeardownError::Interrupted))
    }

    async fn take_down_now(&self, uid: &str, dir: PodDir, whole: bool) -> Result<(), TeardownError> {
        let entry = self.pods.lock().get(uid).cloned();
        let mut state = match &entry {
            Some(entry) => Some(entry.state.lock().await),
            None => None,
        };
        if let Some(state) = &mut state {
            state.removed = true;
        }
        let mounter = Arc::clone(&self.mounter);
        let task = tokio::task::spawn_blocking(move || {
            teardown::volumes(&*mounter, &dir)?;
            if whole {
                teardown::folder(&*mounter, &dir)?;
            }
            Ok::<_, TeardownError>(())
        });
        task.await.map_err(|_| TeardownError::Interrupted)??;
        self.reader.release(uid);
        self.pods.lock().remove(uid);
        self.pokes.lock().remove(uid);
        Ok(())
    }

    /// What is on disk, whoever put it there: pods that nobody wants any more are to be removed
    /// with [`Self::remove_pod`].
    pub async fn on_disk(&self) -> Vec<DiskPod> {
        let (root, mounter) = (self.root.clone(), Arc::clone(&self.mounter));
        tokio::task::spawn_blocking(move || teardown::on_disk(&*mounter, &root)).await.unwrap_or_default()
    }

    /// Follows changes and renews tokens until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut changes = self.reader.changes();
        loop {
            let now = jiff::Timestamp::now();
            let next = self.next_renewal();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep(until(now, at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                change = changes.recv() => match change {
                    Ok(key) => self.object_changed(Some(&key)),
                    // Too many at once to name: everything may have changed.
                    Err(RecvError::Lagged(_)) => self.object_changed(None),
                    Err(RecvError::Closed) => return,
                },
                () = self.tokens_changed.notified() => {}
                () = due => self.renew_tokens(),
            }
        }
    }

    /// The first renewal among the pods that nobody is at already.
    fn next_renewal(&self) -> Option<jiff::Timestamp> {
        let pods = self.pods.lock();
        let idle = pods.values().filter(|entry| !entry.dirty.lock().busy);
        idle.filter_map(|entry| entry.tokens.next_renewal()).min()
    }

    fn object_changed(self: &Arc<Self>, key: Option<&ObjectKey>) {
        let concerned = |entry: &PodEntry| key.is_none_or(|key| entry.keys.lock().contains(key));
        for (uid, entry) in self.find(concerned) {
            self.refresh_soon(&entry, |dirty| match key {
                Some(key) => drop(dirty.keys.insert(key.clone())),
                None => dirty.everything = true,
            });
            if let Some(poke) = self.pokes.lock().get(&uid) {
                poke.send_modify(|count| *count += 1);
            }
        }
    }

    fn renew_tokens(self: &Arc<Self>) {
        let now = jiff::Timestamp::now();
        for (_, entry) in self.find(|entry| entry.tokens.next_renewal().is_some_and(|at| at <= now)) {
            self.refresh_soon(&entry, |dirty| dirty.tokens = true);
        }
    }

    fn find(&self, wanted: impl Fn(&PodEntry) -> bool) -> Vec<(String, Arc<PodEntry>)> {
        let pods = self.pods.lock();
        let found = pods.iter().filter(|(_, entry)| wanted(entry));
        found.map(|(uid, entry)| (uid.clone(), Arc::clone(entry))).collect()
    }

    /// Notes what is to be done; one task for each pod works it off, so that a pod that waits for something holds up
    /// no other.
    fn refresh_soon(self: &Arc<Self>, entry: &Arc<PodEntry>, note: impl FnOnce(&mut Dirty)) {
        let mut dirty = entry.dirty.lock();
        note(&mut dirty);
        if !std::mem::replace(&mut dirty.busy, true) {
            tokio::spawn(Arc::clone(self).work_off(Arc::clone(entry)));
        }
    }

    async fn work_off(self: Arc<Self>, entry: Arc<PodEntry>) {
        loop {
            let state = entry.state.lock().await;
            let todo = {
                let mut dirty = entry.dirty.lock();
                if dirty.is_clean() || state.removed {
                    dirty.busy = false;
                    break;
                }
                std::mem::replace(&mut *dirty, Dirty { busy: true, ..Dirty::default() })
            };
            // Never closed.
            let _permit = self.refreshing.acquire().await;
            for error in self.refresh_locked(&entry, &state, |volume| todo.concerns(volume)).await {
                (self.on_error)(&state.pod, &error);
            }
        }
        self.tokens_changed.notify_one();
    }
}

fn removed() -> VolumeError {
    VolumeError { volume: String::new(), cause: VolumeCause::Removed }
}

fn uid_of(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VolumeCause> + Send + 'static,
) -> Result<T, VolumeCause> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(VolumeCause::Removed))
}

/// Plugin folder of a volume with content, and whether it is a tmpfs.
fn wrapper_of(volume: &Volume) -> Result<(&'static str, bool), VolumeCause> {
    if volume.config_map.is_some() {
        Ok((folders::CONFIG_MAP, false))
    } else if volume.secret.is_some() {
        Ok((folders::SECRET, true))
    } else if volume.downward_api.is_some() {
        Ok((folders::DOWNWARD_API, true))
    } else if volume.projected.is_some() {
        Ok((folders::PROJECTED, true))
    } else if volume.git_repo.is_some() {
        Err(VolumeCause::GitRepo)
    } else {
        Err(VolumeCause::Unsupported { kind: foreign_kind(volume).unwrap_or("unknown") })
    }
}

/// Where a container finds the volume.
fn source_of(dir: &PodDir, volume: &Volume) -> MountSource {
    if let Some(source) = &volume.host_path {
        return MountSource { path: Path::new(&source.path).to_owned(), read_only: false, selinux_relabel: false };
    }
    match wrapper_of(volume) {
        Ok((plugin, _)) => {
            MountSource { path: dir.volume(plugin, &volume.name), read_only: true, selinux_relabel: true }
        }
        Err(_) => {
            MountSource { path: dir.volume(folders::EMPTY_DIR, &volume.name), read_only: false, selinux_relabel: true }
        }
    }
}

/// A volume without any source is an emptyDir (upstream defaults it so).
fn has_no_source(volume: &Volume) -> bool {
    let bare = Volume { name: volume.name.clone(), ..Volume::default() };
    *volume == bare
}

/// The kind of a volume that is not supported.
#[must_use]
pub fn foreign_kind(volume: &Volume) -> Option<&'static str> {
    let kinds = [
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("csi", volume.csi.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("image", volume.image.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("fc", volume.fc.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
    ];
    kinds.into_iter().find_map(|(name, set)| set.then_some(name))
}
