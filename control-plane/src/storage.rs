//! Flags that say where objects are kept, and what cannot go together.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use clap::{Args, ValueEnum};
use keelson_control_plane::run;
use keelson_control_plane::store::{DEFAULT_PREFIX, EtcdConfig, Store};

/// Kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A file in the data folder, for one server.
    Sqlite,
    /// etcd, for several servers.
    Etcd,
}

/// Upstream's names.
#[derive(Args, Clone, Debug, Default)]
#[group(id = "storage")]
pub struct Flags {
    /// Where objects are kept: sqlite (a file in the data folder), or etcd, which is the default with --etcd-servers.
    #[arg(long)]
    pub store: Option<Kind>,
    /// etcd servers, separated by commas, for instance http://127.0.0.1:2379; one is used, the next when it fails.
    #[arg(long, value_delimiter = ',')]
    pub etcd_servers: Vec<String>,
    /// What keys in etcd begin with; /registry if not given.
    #[arg(long)]
    pub etcd_prefix: Option<String>,
    /// Certificate authorities of etcd (PEM), for https.
    #[arg(long)]
    pub etcd_cafile: Option<PathBuf>,
    /// Certificate of this server for etcd (PEM), for https.
    #[arg(long)]
    pub etcd_certfile: Option<PathBuf>,
    /// Key of --etcd-certfile (PEM).
    #[arg(long)]
    pub etcd_keyfile: Option<PathBuf>,
}

impl Flags {
    /// The flags about etcd that were given.
    fn given(&self) -> Vec<&'static str> {
        let flags = [
            (!self.etcd_servers.is_empty(), "--etcd-servers"),
            (self.etcd_prefix.is_some(), "--etcd-prefix"),
            (self.etcd_cafile.is_some(), "--etcd-cafile"),
            (self.etcd_certfile.is_some(), "--etcd-certfile"),
            (self.etcd_keyfile.is_some(), "--etcd-keyfile"),
        ];
        flags.into_iter().filter(|(given, _)| *given).map(|(_, name)| name).collect()
    }

    /// Refuses what a process without an API server cannot use.
    pub fn check_unused(&self) -> anyhow::Result<()> {
        let store = self.store.map(|_| "--store");
        if let Some(flag) = store.or_else(|| self.given().first().copied()) {
            bail!("{flag} is for the API server, which this process does not run: drop it, or add apiserver to --only");
        }
        Ok(())
    }

    /// Where etcd is; `None` for the file in the data folder.
    pub fn etcd(&self) -> anyhow::Result<Option<EtcdConfig>> {
        if self.etcd_servers.is_empty() {
            if self.store == Some(Kind::Etcd) {
                bail!("--store etcd needs --etcd-servers, for instance --etcd-servers http://127.0.0.1:2379");
            }
            if let Some(flag) = self.given().first() {
                bail!("{flag} is given without --etcd-servers");
            }
            return Ok(None);
        }
        if self.store == Some(Kind::Sqlite) {
            bail!("--store sqlite and --etcd-servers contradict each other: drop one of them");
        }
        let secure = self.etcd_servers.iter().filter(|url| url.starts_with("https://")).count();
        if secure == 0
            && let Some(flag) = self.given().iter().find(|flag| flag.ends_with("file"))
        {
            bail!("{flag} is given, but no server of --etcd-servers has https");
        }
        if self.etcd_certfile.is_some() != self.etcd_keyfile.is_some() {
            bail!("--etcd-certfile and --etcd-keyfile are needed together");
        }
        Ok(Some(EtcdConfig {
            servers: self.etcd_servers.clone(),
            prefix: self.etcd_prefix.clone().unwrap_or_else(|| DEFAULT_PREFIX.to_owned()),
            ca_file: self.etcd_cafile.clone(),
            cert_file: self.etcd_certfile.clone(),
            key_file: self.etcd_keyfile.clone(),
        }))
    }

    /// Opens the store.
    pub fn open(&self, data_dir: &std::path::Path) -> anyhow::Result<Arc<dyn Store>> {
        Ok(match self.etcd()? {
            Some(config) => run::open_etcd(data_dir, &config)?,
            None => run::open_store(data_dir)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(line: &str) -> Flags {
        Cli::parse_from(std::iter::once("x").chain(line.split_whitespace())).flags
    }

    #[test]
    fn wrong_combinations_are_refused() {
        for (line, why) in [
            ("--store etcd", "needs --etcd-servers"),
            ("--store sqlite --etcd-servers http://a:2379", "contradict"),
            ("--etcd-prefix /x", "--etcd-prefix is given without --etcd-servers"),
            ("--etcd-cafile ca --etcd-servers http://a:2379", "--etcd-cafile is given, but no server"),
            ("--etcd-certfile c --etcd-cafile ca --etcd-servers https://a:2379", "needed together"),
        ] {
            let error = flags(line).etcd().unwrap_err().to_string();
            assert!(error.contains(why), "{line}: {error}");
        }
        assert!(flags("--store sqlite").check_unused().unwrap_err().to_string().contains("--store is for the API"));
        assert!(flags("--etcd-servers http://a").check_unused().is_err());
        flags("").check_unused().unwrap();
    }

    #[test]
    fn servers_choose_the_store() {
        assert!(flags("").etcd().unwrap().is_none());
        assert!(flags("--store sqlite").etcd().unwrap().is_none());
        let config = flags("--etcd-servers http://a:2379,http://b:2379").etcd().unwrap().unwrap();
        assert_eq!((config.servers.len(), config.prefix.as_str()), (2, "/registry"));
    }
}
