//! Who holds a place among the connections. A client that has shown no credentials yet (a stranger) holds its place
//! only for a moment, holds few per address, and gives way when all are taken: so nobody without credentials can
//! close the node API to those who have them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// The bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Connections at once.
    pub all: usize,
    /// Strangers at once from one address. An API server may open a burst before the first answer.
    pub strangers_per_address: usize,
    /// A stranger is dropped when it has made no request with credentials by then, handshake included.
    pub first_request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { all: 1024, strangers_per_address: 128, first_request: Duration::from_secs(15) }
    }
}

struct Stranger {
    address: IpAddr,
    end: CancellationToken,
}

/// All places. Strangers are in the order of their arrival.
pub(super) struct Connections {
    limits: Limits,
    places: Arc<Semaphore>,
    strangers: Mutex<(u64, BTreeMap<u64, Stranger>)>,
}

impl Connections {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, places: Arc::new(Semaphore::new(limits.all)), strangers: Mutex::default() })
    }

    /// A place for a new connection: a stranger gives way when all are taken; with none, this waits.
    pub async fn place(self: &Arc<Self>, address: IpAddr) -> Arc<Place> {
        self.give_way(|stranger| stranger.address == address, self.limits.strangers_per_address);
        let permit = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                self.give_way(|_| true, 1);
                // Never closed.
                Arc::clone(&self.places).acquire_owned().await.ok()
            }
        };
        let end = CancellationToken::new();
        let mut strangers = self.strangers.lock();
        strangers.0 += 1;
        let id = strangers.0;
        strangers.1.insert(id, Stranger { address, end: end.clone() });
        Arc::new(Place { connections: Arc::clone(self), id, end, _permit: permit })
    }

    /// Ends the oldest stranger of a kind if there are `most` of it.
    fn give_way(&self, of: impl Fn(&Stranger) -> bool, most: usize) {
        let mut strangers = self.strangers.lock();
        let kind: Vec<u64> = strangers.1.iter().filter(|(_, s)| of(s)).map(|(id, _)| *id).collect();
        if kind.len() >= most
            && let Some(stranger) = kind.first().and_then(|id| strangers.1.remove(id))
        {
            tracing::debug!(address = %stranger.address, "a connection without credentials gives way on the node API");
            stranger.end.cancel();
        }
    }
}

/// One connection's place; given back when dropped.
pub(super) struct Place {
    connections: Arc<Connections>,
    id: u64,
    end: CancellationToken,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// The client has shown credentials.
    pub fn known(&self) {
        self.connections.strangers.lock().1.remove(&self.id);
    }

    fn is_stranger(&self) -> bool {
        self.connections.strangers.lock().1.contains_key(&self.id)
    }

    /// Ready when the place has to be given up; never for a client with credentials.
    pub async fn lost(&self) {
        let deadline = tokio::time::sleep(self.connections.limits.first_request);
        tokio::select! {
            () = self.end.cancelled() => return,
            () = deadline => {}
        }
        if !self.is_stranger() {
            self.end.cancelled().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.known();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(all: usize, strangers_per_address: usize) -> Limits {
        Limits { all, strangers_per_address, first_request: Duration::from_secs(15) }
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn ended(place: &Place) -> bool {
        place.end.is_cancelled()
    }

    #[tokio::test]
    async fn the_oldest_stranger_of_an_address_gives_way() {
        let all = Connections::new(limits(10, 2));
        let other = all.place(address(9)).await;
        let (a, b) = (all.place(address(1)).await, all.place(address(1)).await);
        assert!(!ended(&a));
        let c = all.place(address(1)).await;
        assert_eq!([&other, &a, &b, &c].map(|p| ended(p)), [false, true, false, false]);
        b.known();
        let _d = all.place(address(1)).await;
        assert!(!ended(&b) && !ended(&c), "a known client counts no more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_house_has_room_for_one_more_as_long_as_strangers_are_in_it() {
        let all = Connections::new(limits(2, 10));
        let (known, stranger) = (all.place(address(1)).await, all.place(address(2)).await);
        known.known();
        let leaving = async {
            stranger.lost().await;
            drop(stranger);
        };
        let (third, ()) = tokio::join!(all.place(address(3)), leaving);
        third.known();
        assert!(!ended(&known));
        let waits = tokio::time::timeout(Duration::from_secs(60), all.place(address(4))).await;
        assert!(waits.is_err(), "nobody with credentials gives way");
        drop(known);
        all.place(address(4)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_has_a_deadline_and_a_known_client_has_none() {
        let all = Connections::new(limits(2, 10));
        let (known, stranger) = (all.place(address(1)).await, all.place(address(1)).await);
        known.known();
        stranger.lost().await;
        assert!(tokio::time::timeout(Duration::from_secs(3600), known.lost()).await.is_err());
    }
}
