//! Notices when somebody else changes a table: a socket in the `NFNLGRP_NFTABLES` group.
//!
//! The kernel announces the objects of a transaction first and ends with one `NEWGEN` that names
//! the sender. A transaction counts as foreign when its netlink port is not one of ours (a process
//! number would not do: the kernel reports it as seen from the initial PID namespace). `ENOBUFS`
//! (announcements lost) counts as a foreign change: the reader then lists the table.

use std::io;

use netlink_sys::{AsyncSocket, AsyncSocketExt, TokioSocket, protocols::NETLINK_NETFILTER};
use nix::sys::socket::{setsockopt, sockopt};

use super::{Family, NftError};
use crate::uapi::*;
use crate::wire::Messages;

/// What was noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Another process changed something in the table.
    Foreign {
        /// That process.
        pid: u32,
    },
    /// Announcements were lost.
    Lost,
}

/// A subscription to changes of one table name (in all families).
pub struct Monitor {
    socket: TokioSocket,
    table: String,
    own_ports: Vec<u32>,
    progress: Progress,
    buf: Vec<u8>,
}

/// How far the announcements were read.
#[derive(Debug, Default)]
struct Progress {
    /// The table was named in the transaction that is being announced.
    touched: bool,
    /// The generation that the last whole announcement led to, whoever committed it.
    generation: Option<u32>,
}

impl Monitor {
    /// Subscribes in the calling thread's network namespace; changes sent by `own_ports` (see
    /// [`super::KernelNft::port`]) are not reported. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`NftError::Open`].
    pub fn open(table: &str, own_ports: Vec<u32>) -> Result<Self, NftError> {
        let open = || -> io::Result<TokioSocket> {
            let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
            socket.socket_mut().bind_auto()?;
            let _ = setsockopt(socket.socket_ref(), sockopt::RcvBufForce, &(4 << 20));
            socket.socket_mut().add_membership(NFNLGRP_NFTABLES)?;
            Ok(socket)
        };
        let socket = open().map_err(|source| NftError::Open { source })?;
        Ok(Self {
            socket,
            table: table.to_owned(),
            own_ports,
            progress: Progress::default(),
            buf: Vec::with_capacity(64 * 1024),
        })
    }

    /// Makes the receive buffer small: for tests of what happens when announcements do not fit.
    ///
    /// # Errors
    /// The system's answer.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(setsockopt(self.socket.socket_ref(), sockopt::RcvBuf, &bytes)?)
    }

    /// The generation of the rule set as of the last announcement; none before the first.
    /// When the kernel's is ahead for long, announcements do not arrive any more.
    #[must_use]
    pub fn generation(&self) -> Option<u32> {
        self.progress.generation
    }

    /// Waits for the next foreign change of the table. May be dropped while it waits.
    ///
    /// # Errors
    /// [`NftError::Receive`] when the socket breaks.
    pub async fn next(&mut self) -> Result<Change, NftError> {
        loop {
            self.buf.clear();
            match self.socket.recv(&mut self.buf).await {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.progress.touched = false;
                    return Ok(Change::Lost);
                }
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => continue,
                Err(source) => return Err(NftError::Receive { source }),
            }
            if let Some(pid) = foreign(&self.buf, &self.table, &self.own_ports, &mut self.progress) {
                return Ok(Change::Foreign { pid });
            }
        }
    }
}

/// Works through announcements; the progress carries over when a transaction spans several reads.
fn foreign(buf: &[u8], table: &str, own_ports: &[u32], progress: &mut Progress) -> Option<u32> {
    let mut found = None;
    for message in Messages(buf) {
        if message.kind >> 8 != NFNL_SUBSYS_NFTABLES {
            continue;
        }
        if message.kind & 0xff == NFT_MSG_NEWGEN {
            let pid = message.attrs().u32(NFTA_GEN_PROC_PID).unwrap_or(0);
            progress.generation = message.attrs().u32(NFTA_GEN_ID).or(progress.generation);
            if std::mem::take(&mut progress.touched) && !own_ports.contains(&message.port) {
                found = Some(pid);
            }
        } else if [Family::Ipv4 as u8, Family::Ipv6 as u8].contains(&message.family())
            && message.attrs().str(1) == Some(table)
        {
            progress.touched = true;
        }
    }
    found
}
