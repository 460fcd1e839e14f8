//! The atomic writer: a volume's files change all at once or not at all.
//!
//! Layout, as upstream's: the files lie in `..<timestamp>.<random>/`, `..data` is a link to that
//! folder, and each top-level name of the payload is a link `name -> ..data/name`. A change writes
//! a new folder, renames a new `..data` over the old one, then mends the top-level links. A payload
//! that is already there touches nothing. Leftovers of a crash are removed by the next write.
//!
//! The folder belongs to the agent: containers have it mounted read-only, so ordinary path
//! operations are safe here.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::ownership::Ownership;
use super::payload::Payload;

const DATA: &str = "..data";
const DATA_TMP: &str = "..data_tmp";

/// A step of the writer that failed; retryable.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct WriteError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn at<T>(action: &'static str, path: &Path, result: io::Result<T>) -> Result<T, WriteError> {
    result.map_err(|source| WriteError { action, path: path.to_owned(), source })
}

/// Whether `volume` was ever written.
pub fn is_populated(volume: &Path) -> bool {
    fs::read_link(volume.join(DATA)).is_ok()
}

/// Makes `volume` hold exactly `payload` (already normalised). `true` if anything changed.
///
/// # Errors
/// The first file operation that failed; the old content is then still whole.
pub fn write(volume: &Path, payload: &Payload, owner: Ownership) -> Result<bool, WriteError> {
    let data = volume.join(DATA);
    let current = match fs::read_link(&data) {
        Ok(target) => Some(volume.join(target)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return at("read the link", &data, Err(e)),
    };
    if let Some(current) = &current
        && holds(current, payload, owner)
    {
        link_names(volume, payload)?;
        remove_stale(volume, payload, current)?;
        return Ok(false);
    }
    let fresh = new_folder(volume)?;
    if let Err(error) = fill(&fresh, payload, owner) {
        let _ = fs::remove_dir_all(&fresh);
        return Err(error);
    }
    let tmp = volume.join(DATA_TMP);
    match fs::remove_file(&tmp) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => at("remove", &tmp, Err(e))?,
        _ => {}
    }
    let name = fresh.file_name().unwrap_or_default();
    at("link", &tmp, symlink(name, &tmp))?;
    at("rename to ..data", &tmp, fs::rename(&tmp, &data))?;
    link_names(volume, payload)?;
    remove_stale(volume, payload, &fresh)?;
    Ok(true)
}

/// Whether `folder` holds exactly `payload`, with modes and owners.
fn holds(folder: &Path, payload: &Payload, owner: Ownership) -> bool {
    let same = |path: &String, file: &super::payload::FileProjection| {
        let path = folder.join(path);
        let Ok(meta) = fs::symlink_metadata(&path) else {
            return false;
        };
        let want = owner.file(file.mode, file.uid);
        meta.is_file()
            && meta.len() == file.data.len() as u64
            && meta.mode() & 0o7777 == want.mode
            && want.uid.is_none_or(|uid| meta.uid() == uid)
            && want.gid.is_none_or(|gid| meta.gid() == gid)
            && fs::read(&path).is_ok_and(|data| data == file.data)
    };
    payload.iter().all(|(path, file)| same(path, file)) && count_files(folder).is_ok_and(|count| count == payload.len())
}

fn count_files(folder: &Path) -> io::Result<usize> {
    let mut count = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                count += 1;
            }
        }
    }
    Ok(count)
}

fn new_folder(volume: &Path) -> Result<PathBuf, WriteError> {
    let stamp = jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S").to_string();
    // A name in use is bad luck once; the second try has another random part.
    for _ in 0..8 {
        let path = volume.join(format!("..{stamp}.{}", rand::random_range(0..u32::MAX)));
        match fs::DirBuilder::new().mode(0o755).create(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            result => {
                at("make the folder", &path, result)?;
                return Ok(path);
            }
        }
    }
    let taken = io::Error::from(io::ErrorKind::AlreadyExists);
    at("make a folder in", volume, Err(taken))
}

fn fill(folder: &Path, payload: &Payload, owner: Ownership) -> Result<(), WriteError> {
    apply_dir(folder, owner)?;
    let mut made = BTreeSet::new();
    for (path, file) in payload {
        let full = folder.join(path);
        let mut parent = folder.to_owned();
        for part in Path::new(path).parent().into_iter().flat_map(Path::components) {
            parent.push(part);
            if made.insert(parent.clone()) {
                at("make the folder", &parent, fs::create_dir(&parent))?;
                apply_dir(&parent, owner)?;
            }
        }
        at("write", &full, fs::write(&full, &file.data))?;
        let want = owner.file(file.mode, file.uid);
        if want.uid.is_some() || want.gid.is_some() {
            let chown = std::os::unix::fs::chown(&full, want.uid, want.gid);
            at("set the owner of", &full, chown)?;
        }
        // After chown, which clears set-id bits; and not at creation, which the umask would cut.
        let mode = fs::Permissions::from_mode(want.mode);
        at("set the mode of", &full, fs::set_permissions(&full, mode))?;
    }
    Ok(())
}

fn apply_dir(path: &Path, owner: Ownership) -> Result<(), WriteError> {
    let want = owner.read_only_dir();
    if let Some(gid) = want.gid {
        let chown = std::os::unix::fs::chown(path, None, Some(gid));
        at("set the group of", path, chown)?;
    }
    let mode = fs::Permissions::from_mode(want.mode);
    at("set the mode of", path, fs::set_permissions(path, mode))
}

fn top_names(payload: &Payload) -> BTreeSet<&str> {
    payload.keys().filter_map(|path| path.split('/').next()).collect()
}

fn link_names(volume: &Path, payload: &Payload) -> Result<(), WriteError> {
    for name in top_names(payload) {
        let link = volume.join(name);
        let target = Path::new(DATA).join(name);
        match fs::read_link(&link) {
            Ok(old) if old == target => continue,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // Something else stands where the link belongs; only a file can be taken away safely.
            _ => at("remove", &link, fs::remove_file(&link))?,
        }
        at("link", &link, symlink(&target, &link))?;
    }
    Ok(())
}

/// Removes links that no longer have a file, and folders of earlier or interrupted writes.
fn remove_stale(volume: &Path, payload: &Payload, current: &Path) -> Result<(), WriteError> {
    let wanted = top_names(payload);
    for entry in at("list", volume, fs::read_dir(volume))? {
        let entry = at("list", volume, entry)?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let path = entry.path();
        if text == DATA || path == current || wanted.contains(text.as_ref()) {
            continue;
        }
        let is_dir = at("look at", &path, entry.file_type())?.is_dir();
        if text.starts_with("..") {
            let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            at("remove", &path, removed)?;
        } else if fs::read_link(&path).is_ok_and(|target| target.starts_with(DATA)) {
            at("remove", &path, fs::remove_file(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use proptest::prelude::*;

    use super::super::payload::FileProjection;
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(path, data)| {
                let file = FileProjection { data: data.as_bytes().to_vec().into(), mode: 0o640, uid: None };
                ((*path).to_owned(), file)
            })
            .collect()
    }

    fn read(volume: &Path, path: &str) -> String {
        fs::read_to_string(volume.join(path)).unwrap()
    }

    fn names(volume: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(volume).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn layout_and_change() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path();
        let owner = Ownership::default();
        let first = payload(&[("a", "1"), ("d/x", "2"), ("d/y", "3")]);
        assert!(!is_populated(volume));
        assert!(write(volume, &first, owner).unwrap());
        assert!(is_populated(volume));
        assert_eq!(fs::read_link(volume.join("a")).unwrap(), Path::new("..data/a"));
        assert_eq!(fs::read_link(volume.join("d")).unwrap(), Path::new("..data/d"));
        assert_eq!((read(volume, "a"), read(volume, "d/y")), ("1".into(), "3".into()));
        let mode = fs::metadata(volume.join("a")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o640);

        let before = fs::read_link(volume.join(DATA)).unwrap();
        let inode = fs::metadata(volume.join("a")).unwrap().ino();
        assert!(!write(volume, &first, owner).unwrap(), "unchanged");
        assert_eq!(fs::read_link(volume.join(DATA)).unwrap(), before);
        assert_eq!(fs::metadata(volume.join("a")).unwrap().ino(), inode);

        assert!(write(volume, &payload(&[("a", "9"), ("n", "4")]), owner).unwrap());
        assert_eq!((read(volume, "a"), read(volume, "n")), ("9".into(), "4".into()));
        let names = names(volume);
        assert_eq!(names.len(), 4, "{names:?}: one data folder, ..data, a, n");
        assert!(write(volume, &Payload::new(), owner).unwrap());
        assert!(is_populated(volume));
    }

    #[test]
    fn leftovers_of_a_crash_go() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path();
        let owner = Ownership::default();
        write(volume, &payload(&[("a", "1")]), owner).unwrap();
        fs::create_dir(volume.join("..2020_01_01_00_00_00.7")).unwrap();
        symlink("..2020_01_01_00_00_00.7", volume.join(DATA_TMP)).unwrap();
        symlink("..data/gone", volume.join("gone")).unwrap();
        fs::remove_file(volume.join("a")).unwrap();
        assert!(!write(volume, &payload(&[("a", "1")]), owner).unwrap());
        assert_eq!(names(volume).len(), 3);
        assert_eq!(read(volume, "a"), "1");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_sequence_ends_in_the_last_payload(
            steps in prop::collection::vec(prop::collection::btree_map("[a-c](/[d-f]){0,2}", "[xy]{0,3}", 0..5), 1..5)
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut last = Payload::new();
            for step in &steps {
                let files: Vec<(&str, &str)> = step.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
                let Ok(next) = super::super::payload::normalise(payload(&files)) else { continue };
                write(dir.path(), &next, Ownership::default()).unwrap();
                last = next;
            }
            for (path, file) in &last {
                prop_assert_eq!(&fs::read(dir.path().join(path)).unwrap(), &file.data);
            }
            let links: BTreeSet<String> = names(dir.path()).into_iter().filter(|n| !n.starts_with("..")).collect();
            let want: BTreeSet<String> = top_names(&last).into_iter().map(str::to_owned).collect();
            prop_assert_eq!(links, want);
        }
    }
}
