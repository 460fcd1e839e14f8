//! Owners and modes that `fsGroup` and a pod's common user ask for.
//!
//! Upstream counterpart: `SetVolumeOwnership`. With an fsGroup, files get that group and group
//! access (read for read-only volumes, read and write else), folders also the set-group-ID bit, so
//! that new files belong to the group.

use k8s_openapi::api::core::v1::Pod;

const GROUP_READ: u32 = 0o440;
const GROUP_WRITE: u32 = 0o660;
const GROUP_EXEC: u32 = 0o110;
const SET_GID: u32 = 0o2000;

/// What to set on one file; `None` leaves as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
}

/// Who the files of a pod's volumes belong to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ownership {
    /// The pod's `fsGroup`.
    pub fs_group: Option<u32>,
    /// The user that all containers of the pod run as, if it is one and the same.
    pub fs_user: Option<u32>,
}

impl Ownership {
    /// Reads the pod's security context.
    pub fn of(pod: &Pod) -> Self {
        let id = |id: Option<i64>| id.and_then(|id| u32::try_from(id).ok());
        let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
        Self { fs_group: id(context.and_then(|c| c.fs_group)), fs_user: id(common_user(pod)) }
    }

    /// For a file of a read-only volume.
    pub fn file(&self, mode: u32, uid: Option<u32>) -> Wanted {
        let grouped = self.fs_group.map_or(mode, |_| mode | GROUP_READ);
        Wanted { mode: grouped, uid, gid: self.fs_group }
    }

    /// For a folder of a read-only volume.
    pub fn read_only_dir(&self) -> Wanted {
        let mode = self.fs_group.map_or(0o755, |_| 0o755 | GROUP_READ | GROUP_EXEC | SET_GID);
        Wanted { mode, uid: None, gid: self.fs_group }
    }

    /// For the top folder of a writable volume that now has `mode`.
    pub fn writable_dir(&self, mode: u32) -> Wanted {
        let mode = self.fs_group.map_or(mode, |_| mode | GROUP_WRITE | GROUP_EXEC | SET_GID);
        Wanted { mode, uid: None, gid: self.fs_group }
    }

    /// Mode and owner of a service account token: readable by its owner only, who is the pod's
    /// common user; with an fsGroup the group may read it too. Without either, the volume's mode.
    pub fn token(&self, default_mode: u32) -> (u32, Option<u32>) {
        if self.fs_user.is_some() || self.fs_group.is_some() { (0o600, self.fs_user) } else { (default_mode, None) }
    }
}

/// The `runAsUser` of the pod, if every container ends up with the same.
fn common_user(pod: &Pod) -> Option<i64> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|c| c.run_as_user);
    let mut users = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(spec: serde_json::Value) -> Ownership {
        Ownership::of(&serde_json::from_value(serde_json::json!({"metadata": {}, "spec": spec})).unwrap())
    }

    #[test]
    fn users_and_groups() {
        let plain = owner(serde_json::json!({"containers": [{"name": "a"}]}));
        assert_eq!(plain, Ownership::default());
        assert_eq!(plain.token(0o644), (0o644, None));
        assert_eq!(plain.file(0o400, None).mode, 0o400);
        let one = owner(serde_json::json!({"securityContext": {"runAsUser": 7, "fsGroup": 9},
            "containers": [{"name": "a"}, {"name": "b", "securityContext": {"runAsUser": 7}}]}));
        assert_eq!((one.fs_user, one.fs_group), (Some(7), Some(9)));
        assert_eq!(one.token(0o644), (0o600, Some(7)));
        assert_eq!(one.file(0o400, None).mode, 0o440);
        assert_eq!(one.writable_dir(0o777).mode, 0o2777);
        let two = owner(serde_json::json!({"containers": [
            {"name": "a", "securityContext": {"runAsUser": 1}}, {"name": "b"}]}));
        assert_eq!(two.fs_user, None);
    }
}
