//! Which API servers over one store are alive: each renews a key of its own, and their addresses are the endpoints of `default/kubernetes`.
//!
//! Nobody's clock is compared with another's: a server is alive while its key changes, by the clock of who looks. Upstream counterpart: the
//! lease endpoint reconciler (`pkg/controlplane/reconcilers/lease.go`) with the same keys; there etcd lets them expire.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::server::Server;
use crate::store::{Expect, KeyValue, Op, Revision, StoreError, Txn};

const PREFIX: &str = "/registry/masterleases/";
/// How often the own key is renewed and the others' are looked at.
const INTERVAL: Duration = Duration::from_secs(5);
/// Upstream's `DefaultEndpointReconcilerTTL`: whose key did not change for so long is gone.
const EXPIRY: Duration = Duration::from_secs(15);
/// How long the farewell at the end may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// The other servers.
#[derive(Debug, Default)]
pub struct Others {
    alive: Mutex<BTreeSet<IpAddr>>,
}

impl Others {
    /// Addresses of all servers, this one's too, that are of its family.
    #[must_use]
    pub fn with(&self, own: IpAddr) -> Vec<IpAddr> {
        let mut all = self.alive.lock().clone();
        all.insert(own);
        all.into_iter().filter(|address| address.is_ipv4() == own.is_ipv4()).collect()
    }
}

/// When each key was seen to change last.
#[derive(Debug, Default)]
struct Observed {
    changes: BTreeMap<IpAddr, (Revision, Instant)>,
}

impl Observed {
    /// Who is alive and whose keys have expired.
    fn look<'a>(&mut self, keys: &'a [KeyValue], now: Instant) -> (BTreeSet<IpAddr>, Vec<&'a KeyValue>) {
        let mut present = BTreeMap::new();
        let (mut alive, mut expired) = (BTreeSet::new(), Vec::new());
        for item in keys {
            let Some(address) = item.key.strip_prefix(PREFIX).and_then(|text| text.parse::<IpAddr>().ok()) else {
                continue;
            };
            let since = match self.changes.get(&address) {
                Some((revision, since)) if *revision == item.mod_revision => *since,
                _ => now,
            };
            present.insert(address, (item.mod_revision, since));
            if now.duration_since(since) < EXPIRY {
                alive.insert(address);
            } else {
                expired.push(item);
            }
        }
        self.changes = present;
        (alive, expired)
    }
}

fn own_key(server: &Server) -> Arc<str> {
    format!("{PREFIX}{}", server.config.advertise_address).into()
}

/// Finds the other servers, if there can be any.
///
/// # Errors
/// What the store says.
pub async fn join(server: &Server) -> Result<(), StoreError> {
    if server.store.shared() {
        round(server, &own_key(server), &mut Observed::default()).await?;
    }
    Ok(())
}

/// Takes part until the server stops; does nothing where no other server can be.
pub async fn keep(server: Arc<Server>, shutdown: CancellationToken) {
    if !server.store.shared() {
        return;
    }
    let key = own_key(&server);
    let work = async {
        let mut observed = Observed::default();
        loop {
            match round(&server, &key, &mut observed).await {
                Ok(false) => {}
                Ok(true) => {
                    if let Err(error) = super::kubernetes_service(&server).await {
                        tracing::warn!(%error, "cannot bring the endpoints of the kubernetes Service up to date");
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot tell the other API servers that this one is alive"),
            }
            tokio::time::sleep(INTERVAL).await;
        }
    };
    shutdown.run_until_cancelled(work).await;
    let farewell = server.store.txn(Txn { expect: Vec::new(), ops: vec![Op::Delete { key }] });
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}

/// Renews the own key and looks at all; whether others are alive than before.
async fn round(server: &Server, key: &Arc<str>, observed: &mut Observed) -> Result<bool, StoreError> {
    let value = json!({"renewed": jiff::Timestamp::now().to_string()}).to_string().into();
    server.store.txn(Txn { expect: Vec::new(), ops: vec![Op::Put { key: Arc::clone(key), value }] }).await?;
    let keys = server.store.range(PREFIX, None, None, 0).await?.items;
    let (alive, expired) = observed.look(&keys, Instant::now());
    for item in expired {
        let expect = vec![(Arc::clone(&item.key), Expect::ModRevision(item.mod_revision))];
        server.store.txn(Txn { expect, ops: vec![Op::Delete { key: Arc::clone(&item.key) }] }).await?;
    }
    let changed = std::mem::replace(&mut *server.others.alive.lock(), alive.clone()) != alive;
    if changed {
        tracing::info!(servers = ?alive, "API servers over this store");
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: &str, mod_revision: Revision) -> KeyValue {
        KeyValue { key: format!("{PREFIX}{address}").into(), value: "{}".into(), mod_revision }
    }

    #[test]
    fn a_server_is_alive_while_its_key_changes() {
        let mut observed = Observed::default();
        let start = Instant::now();
        let (a, b): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let at = |seconds| start + Duration::from_secs(seconds);
        let keys = [key("10.0.0.1", 5), key("10.0.0.2", 6), key("nonsense", 7)];
        assert_eq!(observed.look(&keys, start).0, BTreeSet::from([a, b]), "an unknown key has its time to change");
        let keys = [key("10.0.0.1", 8), key("10.0.0.2", 6)];
        assert_eq!(observed.look(&keys, at(10)).0, BTreeSet::from([a, b]));
        let (alive, expired) = observed.look(&keys, at(15));
        assert_eq!(alive, BTreeSet::from([a]));
        assert_eq!(expired, [&keys[1]]);
        let gone = [key("10.0.0.1", 8)];
        assert_eq!(observed.look(&gone, at(16)).0, BTreeSet::from([a]), "who said farewell is gone at once");
    }
}
