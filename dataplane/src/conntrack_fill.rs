//! How full the connection tracking table is. When it is full the kernel drops every packet of a new
//! connection, of all programs of the node, and says so only in its own log: so this is told in time.

use std::path::{Path, PathBuf};

/// From here on it is told…
const WARN_PERCENT: u64 = 80;
/// …and told again only after it has been this low.
const CALM_PERCENT: u64 = 70;

/// Where the kernel keeps the numbers.
const SYSCTLS: &str = "/proc/sys/net/netfilter";

/// The table as last looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Entries of this network namespace.
    pub entries: u64,
    /// Most entries there can be.
    pub limit: u64,
}

/// What is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// It is nearly full.
    Filling,
    /// It no longer is.
    Calm,
}

/// See the module's text.
#[derive(Debug)]
pub struct ConntrackFill {
    folder: PathBuf,
    told: bool,
}

impl Default for ConntrackFill {
    fn default() -> Self {
        Self { folder: SYSCTLS.into(), told: false }
    }
}

fn read(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl ConntrackFill {
    /// Looks, and logs what is news. None: this kernel tracks no connections (yet).
    pub fn look(&mut self) -> Option<Fill> {
        let number = |name: &str| read(&self.folder.join(name));
        let fill = Fill { entries: number("nf_conntrack_count")?, limit: number("nf_conntrack_max")? };
        match self.judge(fill) {
            Some(News::Filling) => tracing::warn!(
                entries = fill.entries,
                limit = fill.limit,
                "the connection tracking table is {} % full: when it is full, new connections to and from this node \
                 are dropped. Raise conntrack.maxPerCore or conntrack.min in the configuration (they set \
                 net.netfilter.nf_conntrack_max), or shorten the timeouts beside them; `conntrack -L` shows who \
                 fills it",
                fill.entries * 100 / fill.limit.max(1)
            ),
            Some(News::Calm) => tracing::info!(
                entries = fill.entries,
                limit = fill.limit,
                "the connection tracking table has room again"
            ),
            None => {}
        }
        Some(fill)
    }

    fn judge(&mut self, fill: Fill) -> Option<News> {
        let reaches = |percent: u64| fill.limit > 0 && fill.entries * 100 >= fill.limit * percent;
        if !self.told && reaches(WARN_PERCENT) {
            self.told = true;
            Some(News::Filling)
        } else if self.told && !reaches(CALM_PERCENT) {
            self.told = false;
            Some(News::Calm)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crossing_is_told_once() {
        let mut seen = ConntrackFill::default();
        let mut at = |entries| seen.judge(Fill { entries, limit: 1000 });
        assert_eq!([at(0), at(799)], [None, None]);
        assert_eq!(
            [at(800), at(801), at(1000), at(799), at(750), at(800)],
            [Some(News::Filling), None, None, None, None, None]
        );
        assert_eq!([at(700), at(699), at(400), at(799)], [None, Some(News::Calm), None, None]);
        assert_eq!([at(900), at(950)], [Some(News::Filling), None]);
        assert_eq!(seen.judge(Fill { entries: 5, limit: 0 }), Some(News::Calm), "no limit is never reached");
    }

    #[test]
    fn the_kernels_files_are_read_and_may_be_missing() {
        let folder = std::env::temp_dir().join(format!("keelson-fill-{}", std::process::id()));
        let mut seen = ConntrackFill { folder: folder.clone(), told: false };
        assert_eq!(seen.look(), None);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("nf_conntrack_count"), "90\n").unwrap();
        std::fs::write(folder.join("nf_conntrack_max"), "100\n").unwrap();
        assert_eq!(seen.look(), Some(Fill { entries: 90, limit: 100 }));
        assert!(seen.told);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
