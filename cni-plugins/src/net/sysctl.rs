//! Settings under /proc/sys, of the namespace of the calling thread.

use std::fs;
use std::path::{Path, PathBuf};

use super::NetError;

fn path(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key)
}

/// Sets a value unless it is there already; `/proc/sys` may be read-only where it is right as it is.
pub fn set(key: &str, value: &str) -> Result<(), NetError> {
    if get(key).as_deref() == Some(value) {
        return Ok(());
    }
    fs::write(path(key), value).map_err(|source| NetError::Sysctl {
        key: key.to_owned(),
        value: value.to_owned(),
        source,
    })
}

/// Sets a value where the kernel has it. A kernel without IPv6 lacks half of what is asked for here, and needs none of it.
pub fn set_if_there(key: &str, value: &str) {
    // The outcome is the same for a missing key and a refused one: what was asked for is a precaution.
    let _ = fs::write(path(key), value);
}

/// The value, if the kernel has it.
pub fn get(key: &str) -> Option<String> {
    fs::read_to_string(path(key)).ok().map(|value| value.trim().to_owned())
}
